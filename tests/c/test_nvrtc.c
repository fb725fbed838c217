/* SPDX-License-Identifier: Apache-2.0 */
/* The real NVRTC, with every copy that is found: cubins for each supported chip, headers from memory, and the messages
   of a failed compilation. WEFT_TEST_NVRTC lists folders to search (separated by colons, like WEFT_NVRTC), each of
   which is tested separately. Without it, the copy that Weft would choose is tested. The exit status is 77 if no copy
   is found. */
#define _GNU_SOURCE
#include "scenario.h"

#include "runtime/cache.h"
#include "runtime/module.h"
#include "runtime/nvrtc.h"

#include <elf.h>

static const char *const archs[] = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"};

static const char program_text[] =
    "#include \"lib/number.cuh\"\n"
    "struct arguments { const float *x; float *y; long long count; };\n"
    "extern \"C\" __global__ void __launch_bounds__(128) scale(const __grid_constant__ arguments a) {\n"
    "    long long i = (long long)blockIdx.x * 128 + threadIdx.x;\n"
    "    if (i < a.count) a.y[i] = twice(a.x[i]);\n"
    "}\n";
static const struct program_header header = {"lib/number.cuh",
                                             "__device__ inline float twice(float x) { return x + x; }\n"};
static const struct program_header wrong_header = {"lib/number.cuh", "\n__device__ inline float twice(float x) {\n"
                                                                     "    return x + z;\n}\n"};

static struct program make_program(const struct program_header *headers) {
    static const char *const options[] = {"--std=c++17", "-default-device"};
    return (struct program){.name = "scale.cu",
                            .text = program_text,
                            .header_count = 1,
                            .headers = headers,
                            .option_count = 2,
                            .options = options};
}

static void check_cubin(const struct code *code, const char *arch) {
    const Elf64_Ehdr *elf = code->image;
    enum { CUDA_MACHINE = 190 };
    CHECK(code->bytes > sizeof *elf && memcmp(code->image, ELFMAG, SELFMAG) == 0 && elf->e_machine == CUDA_MACHINE,
          "%s", arch);
    CHECK(memmem(code->image, code->bytes, ".text.scale", 12) && !code->is_ptx, "%s holds no kernel", arch);
}

/* A chip that no NVRTC supports yet gets PTX. */
static void check_ptx(const struct program *program) {
    const struct code *code;
    DO(cache_get(&code, program, "sm_990a"));
    CHECK(code->is_ptx && strstr(code->image, ".entry scale") && strstr(code->image, ".target sm_"), "%.200s",
          (const char *)code->image);
    CHECK(strstr(code->log, "does not support this chip; compiled to PTX of compute_"), "%s", code->log);
    cache_release(code);
}

/* Loads the code with a driver that reads cubins: the arguments have the size that the kernel declares. */
static void check_loading(const struct program *program) {
    struct device device;
    struct kernel *kernel;
    const struct code *code;
    DO(device_find(&device, WEFT_DEVICE_CUDA, 0));
    DO(cache_get(&code, program, "sm_90a"));
    DO(kernel_load(&kernel, &device, code, "scale", &(struct kernel_needs){.argument_bytes = 24}));
    kernel_release(kernel);
    REFUSED(
        kernel_load(&kernel, &device, code, "scale", &(struct kernel_needs){.argument_bytes = 16}),
        WEFT_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM,
        "cuda:0: kernel 'scale': the host passes one struct of 16 bytes, the kernel expects 24 bytes. This is a defect "
        "of Weft: report it with this text.");
    cache_release(code);
}

static void compile_all(void) {
    struct program program = make_program(&header), wrong = make_program(&wrong_header);
    struct nvrtc_choice choice;
    const struct code *code;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        DO(cache_get(&code, &program, archs[i]));
        check_cubin(code, archs[i]);
        cache_release(code);
    }
    check_ptx(&program);
    check_loading(&program);
    DO(nvrtc_choose(&choice, "sm_90a"));
    printf("NVRTC %d.%d: cubins for sm_75 to sm_120a\n", choice.version / 1000, choice.version % 1000 / 10);
    CHECK(cache_get(&code, &wrong, "sm_90a") == WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED && !code,
          "wrong program");
    char wanted[512];
    snprintf(wanted, sizeof wanted,
             "NVRTC %d.%d, sm_90a: 'scale.cu' does not compile: lib/number.cuh line 3: identifier \"z\" is undefined: "
             "`return x + z;`. This is a defect of Weft: report it with the program, which WEFT_DUMP_DIR=<folder> "
             "saves. Log:\n"
             "lib/number.cuh(3): error: identifier \"z\" is undefined\n",
             choice.version / 1000, choice.version % 1000 / 10);
    CHECK(strncmp(last_error(), wanted, strlen(wanted)) == 0, "%s", last_error());
}

int main(void) {
    const char *folders = getenv("WEFT_TEST_NVRTC"), *driver = "WEFT_LIBCUDA=" FAKE_CUDA;
    char variable[1024];
    struct nvrtc_choice choice;
    if (!folders || !*folders) {
        setenv("WEFT_LIBCUDA", FAKE_CUDA, 1);
        setenv("FAKE_CUDA_VERSION", "19000", 1);
        setenv("WEFT_CACHE", "off", 1);
        if (nvrtc_choose(&choice, "sm_90a")) {
            printf("%s\n", last_error());
            return 77;
        }
        compile_all();
    } else {
        for (const char *at = folders; *at; at += strcspn(at, ":"), at += *at == ':') {
            snprintf(variable, sizeof variable, "WEFT_NVRTC=%.*s", (int)strcspn(at, ":"), at);
            IN_CHILD(compile_all, variable, driver, "FAKE_CUDA_VERSION=19000");
        }
    }
    remove_scratch();
    return harness_end();
}
