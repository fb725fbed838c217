/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, devices, kernels and launches, without a GPU: the exact message of every outcome of loading a
   driver, the driver calls of a launch, and the failure of each call of a whole build and run. The driver and the
   compiler are those of tests/fake_cuda. */
#define _GNU_SOURCE
#include "../emulator/tensor_map.h"
#include "scenario.h"

#include "runtime/context.h"
#include "runtime/launch.h"
#include "runtime/library.h"

#include <pthread.h>
#include <sys/mman.h>

enum { THREADS = 8 };

static void run_threads(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* ---- Loading a driver -------------------------------------------------------------------------------------------- */

static weftStatus_t expected_status;
static const char *expected_text;

static void *get_driver(void *unused) {
    const struct driver *driver = NULL;
    REFUSED(driver_get(&driver), expected_status, "%s", expected_text);
    CHECK(!driver, "a refused driver_get gives none");
    return unused;
}

/* driver_find reports no error; driver_get reports the same error to every caller, each time. */
static void no_driver(void) {
    struct device device;
    DO(WEFT_STATUS_SUCCESS);
    CHECK(!driver_find() && device_count(WEFT_DEVICE_CUDA) == 0 && !*last_error(), "%s", last_error());
    run_threads(get_driver);
    get_driver(NULL);
    REFUSED(device_find(&device, WEFT_DEVICE_CUDA, 0), expected_status, "%s", expected_text);
    DO(device_find(&device, WEFT_DEVICE_CPU, 0));
}

static void expect(weftStatus_t status, const char *text) {
    expected_status = status;
    expected_text = text;
}

static void test_no_driver(void) {
    const weftStatus_t missing = WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                       incompatible = WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
                       failed = WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
    const char *const fake_cuda_file = "WEFT_LIBCUDA=" FAKE_CUDA;
    expect(missing,
           "CUDA driver: the file that WEFT_LIBCUDA names cannot be loaded (/nowhere/libcuda.so.1: cannot open "
           "shared object file: No such file or directory). Name NVIDIA's libcuda.so.1 there, unset "
           "WEFT_LIBCUDA, or use the CPU (device cpu:0).");
    IN_CHILD(no_driver, "WEFT_LIBCUDA=/nowhere/libcuda.so.1");
    expect(missing,
           "CUDA driver: '" FAKE_NVRTC "' does not report its version, so it is not a CUDA driver. Install NVIDIA's "
           "driver, or use the CPU (device cpu:0).");
    IN_CHILD(no_driver, "WEFT_LIBCUDA=" FAKE_NVRTC);
    expect(incompatible, "CUDA driver: Weft needs CUDA 12.0 or newer, '" FAKE_CUDA
                         "' supports 11.8. Update NVIDIA's driver to 525 or newer, or use the CPU (device cpu:0).");
    IN_CHILD(no_driver, fake_cuda_file, "FAKE_CUDA_VERSION=11080");
    expect(incompatible, "CUDA driver: '" FAKE_CUDA "' reports that it supports CUDA 12.4 but lacks cuLaunchKernelEx. "
                         "Reinstall NVIDIA's driver, or use the CPU (device cpu:0).");
    IN_CHILD(no_driver, fake_cuda_file, "FAKE_CUDA_VERSION=12040", "FAKE_CUDA_MISSING=cuLaunchKernelEx");
    expect(missing,
           "CUDA driver: it supports CUDA 13.0 and finds no GPU (CUDA_VISIBLE_DEVICES is not set). Check nvidia-smi, "
           "give the container the GPU (docker run --gpus all), or use the CPU (device cpu:0).");
    IN_CHILD(no_driver, fake_cuda_file, "FAKE_CUDA_DEVICES=0");
    expect(missing,
           "CUDA driver: it supports CUDA 13.0 and finds no GPU (CUDA_VISIBLE_DEVICES is '-1'). Check nvidia-smi, "
           "give the container the GPU (docker run --gpus all), or use the CPU (device cpu:0).");
    IN_CHILD(no_driver, fake_cuda_file, "FAKE_CUDA_DEVICES=0", "CUDA_VISIBLE_DEVICES=-1");
    expect(incompatible,
           "CUDA driver: it does not start: cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803: words for "
           "803). Reboot, or reload the kernel module: its version differs from that of libcuda, as after an update of "
           "the driver. Until then use the CPU (device cpu:0).");
    IN_CHILD(no_driver, fake_cuda_file, "FAKE_CUDA_FAIL=1:803");
    expect(missing,
           "CUDA driver: it does not start: cuInit returned CUDA_ERROR_STUB_LIBRARY (34: words for 34). It is the "
           "stub that toolkits link with: remove its folder from LD_LIBRARY_PATH and install NVIDIA's driver. "
           "Until then use the CPU (device cpu:0).");
    IN_CHILD(no_driver, fake_cuda_file, "FAKE_CUDA_FAIL=1:34");
    expect(failed,
           "CUDA driver: it does not start: cuInit returned CUDA_ERROR_UNKNOWN (999: words for 999). See nvidia-smi "
           "and the kernel log. Until then use the CPU (device cpu:0).");
    IN_CHILD(no_driver, fake_cuda_file, "FAKE_CUDA_FAIL=1:999");
    if (dlopen("libcuda.so.1", RTLD_NOW)) {
        printf("not observed: a machine without a driver (this one has one)\n");
        return;
    }
    expect(missing,
           "CUDA driver: a GPU needs NVIDIA's driver, 525 or newer, but its library cannot be loaded (libcuda.so.1: "
           "cannot open shared object file: No such file or directory). Install the driver, give the container the "
           "GPU (docker run --gpus all), or use the CPU (device cpu:0).");
    IN_CHILD(no_driver, "WEFT_LIBCUDA=");
}

static void forked_child(void) {
    const struct driver *driver;
    REFUSED(
        driver_get(&driver), WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
        "CUDA driver: this process was forked from one that had started CUDA, which does not survive a fork. Start "
        "workers by spawn (Python: multiprocessing.set_start_method('spawn')), or fork before the first use of a GPU.");
    CHECK(!driver_find() && device_count(WEFT_DEVICE_CUDA) == 0, "nor is it found");
}

static void forked(void) {
    const struct driver *driver;
    DO(driver_get(&driver));
    CHECK(driver->version == 13000 && driver->device_count == 2, "%d, %d", driver->version, driver->device_count);
    IN_CHILD(forked_child, "WEFT_LIBCUDA=" FAKE_CUDA);
}

/* The CPU needs no driver, so a program that uses only the CPU must not load one. */
static void cpu_only(void) {
    weftHandle_t handle;
    struct device device;
    MUST(weftCreate(&handle));
    MUST(weftDestroy(handle));
    DO(device_find(&device, WEFT_DEVICE_CPU, 0));
    DO(device_choose_default(&device));
    CHECK(device.kind == WEFT_DEVICE_CPU, "the CPU is what WEFT_DEVICE names");
    DO(device_describe_cuda(&device, 9, 0));
    CHECK(!dlopen(FAKE_CUDA, RTLD_NOW | RTLD_NOLOAD), "the driver was loaded");
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static void two_devices(void) {
    struct device device;
    char arch[16];
    DO(device_find(&device, WEFT_DEVICE_CUDA, 1));
    const struct cuda_properties *cuda = &device.cuda;
    CHECK(device_count(WEFT_DEVICE_CUDA) == 2 && device_count(WEFT_DEVICE_CPU) == 1, "counts");
    CHECK(device.kind == WEFT_DEVICE_CUDA && device.ordinal == 1 && !device.is_described, "identity");
    EXACTLY(device.name, "Fake GPU 1");
    CHECK(cuda->major == 9 && cuda->minor == 0 && cuda->multiprocessors == 4 && cuda->clock_khz == 1500000, "chip");
    CHECK(cuda->bandwidth == 1000000000ll * 2 * 512 / 8 && cuda->memory_bytes == 16ll << 30 &&
              cuda->l2_bytes == 8 << 20,
          "memory: %lld", (long long)cuda->bandwidth);
    CHECK(cuda->shared_per_block == 227 << 10 && cuda->shared_per_multiprocessor == 228 << 10 &&
              cuda->registers_per_multiprocessor == 65536 && cuda->threads_per_multiprocessor == 2048 &&
              cuda->threads_per_block == 1024,
          "limits");
    CHECK(cuda->max_grid[0] == INT32_MAX && cuda->max_grid[1] == 65535 && cuda->max_grid[2] == 65535, "grid");
    CHECK(cuda->uuid[0] == 1 && cuda->uuid[15] == 16, "uuid");
    device_arch(arch, &device);
    EXACTLY(arch, "sm_90a");
    REFUSED(device_find(&device, WEFT_DEVICE_CUDA, 2), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "no device cuda:2 on this machine: Weft found 2 cuda devices. Use cuda:0..1 or cpu:0.");
    REFUSED(device_find(&device, WEFT_DEVICE_CUDA, -1), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "no device cuda:-1 on this machine: Weft found 2 cuda devices. Use cuda:0..1 or cpu:0.");
    REFUSED(device_find(&device, WEFT_DEVICE_CPU, 1), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "no device cpu:1: a machine has one CPU device, cpu:0, and one cuda device per GPU. Use cpu:0 or "
            "cuda:0.");
    open_fake();
    check_clean(0); /* querying devices creates no context */
}

static void one_old_device(void) {
    struct device device;
    REFUSED(device_find(&device, WEFT_DEVICE_CUDA, 0), WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
            "cuda:0 (Fake GPU 0): kernels need compute capability 7.5 or newer, this GPU has 7.0. Use a newer GPU or "
            "the CPU (device cpu:0).");
    REFUSED(device_find(&device, WEFT_DEVICE_CUDA, 7), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "no device cuda:7 on this machine: Weft found 1 cuda device. Use cuda:0 or cpu:0.");
}

static void default_device(void) {
    struct device device;
    const char *wish = getenv("WEFT_DEVICE") ? getenv("WEFT_DEVICE") : "cuda"; /* the first GPU */
    DO(device_choose_default(&device));
    bool is_cpu = strcmp(wish, "cpu") == 0;
    CHECK(device.kind == (is_cpu ? WEFT_DEVICE_CPU : WEFT_DEVICE_CUDA), "%s", wish);
    CHECK(device.ordinal == (strcmp(wish, "cuda:1") == 0), "%s", wish);
}

static void bad_default_device(void) {
    struct device device;
    REFUSED(device_choose_default(&device), WEFT_STATUS_BAD_PARAM,
            "WEFT_DEVICE is '%s'; it must be cpu, cuda or cuda:N. Correct or unset it.", getenv("WEFT_DEVICE"));
}

static void absent_default_device(void) {
    struct device device;
    REFUSED(device_choose_default(&device), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "no device cuda:5 on this machine: Weft found 2 cuda devices. Use cuda:0..1 or cpu:0.");
}

/* Compute capabilities and their limits: the table of technical specifications in the CUDA C++ Programming Guide. */
static void test_described_devices(void) {
    static const struct {
        int major, minor;
        const char *name, *arch;
        int shared, shared_of_all, threads;
    } cases[] = {
        {7, 5, "T4 (described)", "sm_75", 64, 64, 1024},
        {8, 0, "A100 (described)", "sm_80", 163, 164, 2048},
        {8, 6, "RTX 3090 (described)", "sm_86", 99, 100, 1536},
        {8, 7, "Orin (described)", "sm_87", 163, 164, 1536},
        {8, 8, "like Orin (described)", "sm_88", 163, 164, 1536},
        {8, 9, "RTX 4090 (described)", "sm_89", 99, 100, 1536},
        {9, 0, "H200 (described)", "sm_90a", 227, 228, 2048},
        {10, 0, "B200 (described)", "sm_100a", 227, 228, 2048},
        {10, 3, "B300 (described)", "sm_103a", 227, 228, 2048},
        {11, 0, "Thor (described)", "sm_110a", 227, 228, 1536},
        {12, 0, "RTX 5090 (described)", "sm_120a", 99, 100, 1536},
        {12, 1, "GB10 (described)", "sm_121a", 99, 100, 1536},
        {13, 0, "like GB10 (described)", "sm_130a", 99, 100, 1536},
    };
    struct device device;
    struct device_scope scope;
    char arch[16];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int major = 0, minor = 0;
        DO(device_describe_cuda(&device, cases[i].major, cases[i].minor));
        EXACTLY(device.name, "%s", cases[i].name);
        device_arch(arch, &device);
        EXACTLY(arch, "%s", cases[i].arch);
        CHECK(device.is_described && device.kind == WEFT_DEVICE_CUDA &&
                  device.cuda.shared_per_block == cases[i].shared << 10 &&
                  device.cuda.shared_per_multiprocessor == cases[i].shared_of_all << 10 &&
                  device.cuda.threads_per_multiprocessor == cases[i].threads,
              "%s", arch);
        CHECK(device.cuda.bandwidth > 0 && device.cuda.multiprocessors > 0 && device.cuda.l2_bytes > 0, "%s", arch);
        DO(device_read_arch(&major, &minor, arch));
        CHECK(major == cases[i].major && minor == cases[i].minor, "%s is %d.%d", arch, major, minor);
    }
    DO(device_describe_cuda(&device, 9, 0));
    REFUSED(device_enter(&scope, &device), WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
            "cuda:0 (H200 (described)): loading and running code need a GPU of this machine, which this device is not. "
            "Save the plan and run it where the GPU is.");
    REFUSED(device_describe_cuda(&device, 7, 0), WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
            "device description: kernels need compute capability 7.5 or newer, not 7.0. Name a newer GPU, as "
            "\"sm_90\".");
    static const char *const wrong[] = {"",        "sm_",        "sm90",   "sm_9",  "sm_90b",
                                        "sm_90aa", "compute_90", "sm_-90", "sm_ 90"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int major, minor;
        REFUSED(device_read_arch(&major, &minor, wrong[i]), WEFT_STATUS_BAD_PARAM,
                "'%s' is not a GPU architecture. Use the form \"sm_90\".", wrong[i]);
    }
}

static struct device gpus[2];

static void *enter_devices(void *index) {
    const struct driver *driver;
    DO(driver_get(&driver));
    for (int i = 0; i < 50; i++) {
        struct device_scope outer, inner, again;
        void *first = NULL, *second = NULL, *last = NULL;
        int first_gpu = ((int)(intptr_t)index + i) % 2;
        DO(device_enter(&outer, &gpus[first_gpu]));
        driver->ctx_get_current(&first);
        DO(device_enter(&again, &gpus[first_gpu]));
        CHECK(again.driver == driver && !again.is_pushed, "a device that is current is not pushed again");
        DO(device_enter(&inner, &gpus[1 - first_gpu]));
        driver->ctx_get_current(&second);
        device_leave(&inner);
        device_leave(&again);
        driver->ctx_get_current(&last);
        CHECK(first && second && first != second && first == last, "nested");
        device_leave(&outer);
    }
    return NULL;
}

static void entering(void) {
    open_fake();
    DO(device_find(&gpus[0], WEFT_DEVICE_CUDA, 0));
    DO(device_find(&gpus[1], WEFT_DEVICE_CUDA, 1));
    run_threads(enter_devices);
    check_clean(2);
}

/* ---- Kernels and launches ---------------------------------------------------------------------------------------- */

struct arguments {
    uint64_t x, y;
    int64_t count;
};

static const char program_text[] = "// fake: scale 24 0\n"
                                   "// fake: tile 24 1024\n"
                                   "// fake: ring 0 0\n"
                                   "extern \"C\" __global__ void __launch_bounds__(256) scale(arguments a) {}\n"
                                   "extern \"C\" __global__ void tile(const __grid_constant__ arguments a) {}\n"
                                   "extern \"C\" __global__ void __cluster_dims__(2, 1, 1) ring() {}\n"
                                   "extern \"C\" __global__ void opaque(arguments a) {}\n";

static struct program program_of(const char *text) {
    static const char *const options[] = {"--std=c++17"};
    return (struct program){.name = "test.cu", .text = text, .option_count = 1, .options = options};
}

static const struct code *compile_text(const char *text, const char *arch) {
    const struct code *code;
    struct program program = program_of(text);
    DO(cache_get(&code, &program, arch));
    return code;
}

static void check_launches(const struct kernel *scale, const struct kernel *ring, const struct driver *driver) {
    struct arguments arguments = {0x1000, 0x2000, 77};
    struct fake_launch seen = {0};
    uint8_t bytes[] = "to be overwritten";
    const uint8_t words[sizeof bytes] = "what was copied";
    int mark;
    struct launch launch = {
        .kernel = scale, .grid = {INT32_MAX, 65535, 2}, .block = {32, 4, 2}, .arguments = &arguments};
    DO(launch_kernel(&launch, &mark));
    arguments.count = 0; /* the launch has already read the arguments */
    CHECK(fake->launch(0, &seen), "recorded");
    EXACTLY(seen.kernel, "scale");
    CHECK(seen.device == 1 && seen.stream == &mark && seen.shared_bytes == 0 && !seen.is_dependent &&
              !seen.is_cooperative && !seen.cluster[0],
          "scale");
    CHECK(seen.grid[0] == INT32_MAX && seen.grid[1] == 65535 && seen.grid[2] == 2, "grid");
    CHECK(seen.block[0] == 32 && seen.block[1] == 4 && seen.block[2] == 2, "block");
    CHECK(seen.argument_bytes == sizeof arguments &&
              memcmp(seen.arguments, &(struct arguments){0x1000, 0x2000, 77}, sizeof arguments) == 0,
          "arguments");
    launch = (struct launch){.kernel = ring,
                             .grid = {32, 1, 1},
                             .block = {384, 1, 1},
                             .cluster = {16, 1, 1},
                             .shared_bytes = 200 << 10,
                             .is_dependent = true,
                             .is_cooperative = true};
    DO(launch_kernel(&launch, NULL));
    CHECK(fake->launch(1, &seen) && seen.cluster[0] == 16 && seen.cluster[2] == 1 && seen.is_dependent &&
              seen.is_cooperative && seen.shared_bytes == 200 << 10 && !seen.stream,
          "ring");
    for (int axis = 0; axis < 3; axis++) { /* nothing to launch */
        struct launch empty = {.kernel = scale, .grid = {5, 5, 5}, .block = {1, 1, 1}, .arguments = &arguments};
        empty.grid[axis] = 0;
        DO(launch_kernel(&empty, NULL));
    }
    CHECK(fake->launches() == 2, "%lld launches", (long long)fake->launches());
    DO(launch_copy(driver, (uint64_t)(uintptr_t)bytes, (uint64_t)(uintptr_t)words, sizeof bytes, NULL));
    CHECK(memcmp(bytes, words, sizeof bytes) == 0, "copied");
    DO(launch_copy(driver, 0, 0, 0, NULL));
}

static void check_limits(const struct kernel *scale) {
    struct arguments arguments = {0};
    const struct launch right = {.kernel = scale, .grid = {4, 2, 2}, .block = {32, 1, 1}, .arguments = &arguments};
    struct launch wrong[12];
    for (int i = 0; i < 12; i++)
        wrong[i] = right;
    wrong[0].grid[0] = 1ll << 31;
    wrong[1].grid[1] = 65536;
    wrong[2].grid[2] = 1ll << 32; /* 0 if truncated to 32 bits */
    wrong[3].grid[0] = -1;
    wrong[4].block[0] = 0;
    wrong[5].block[0] = 1025;
    wrong[6].block[2] = 65;
    wrong[7].block[1] = 33;
    wrong[7].block[0] = 32;
    wrong[8].shared_bytes = (48 << 10) + 1;
    wrong[9].cluster[0] = 3, wrong[9].cluster[1] = wrong[9].cluster[2] = 1;
    wrong[10].cluster[0] = 2;                                                /* the other dimensions are 0 */
    wrong[11].block[0] = wrong[11].block[1] = wrong[11].block[2] = 1u << 31; /* 0 if truncated to 64 bits */
    for (int i = 0; i < 12; i++) {
        const struct launch *l = &wrong[i];
        REFUSED(launch_kernel(l, NULL), WEFT_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM,
                "cuda:1: kernel 'scale': a grid may have [2147483647,65535,65535] blocks of 1024 threads and 49152 "
                "bytes of dynamic shared memory, this launch has [%lld,%lld,%lld] blocks of [%u,%u,%u] threads, "
                "clusters of [%u,%u,%u] and %u bytes. This is a defect of Weft: report it with this text.",
                (long long)l->grid[0], (long long)l->grid[1], (long long)l->grid[2], l->block[0], l->block[1],
                l->block[2], l->cluster[0], l->cluster[1], l->cluster[2], l->shared_bytes);
    }
    int fits = 0;
    DO(kernel_blocks_per_multiprocessor(&fits, scale, 256, 0));
    CHECK(fits == 8, "%d", fits);
    fake->fail_at(1, 700);
    REFUSED(launch_kernel(&right, NULL), WEFT_STATUS_EXECUTION_FAILED,
            "cuda:1: launching kernel 'scale': the CUDA driver returned CUDA_ERROR_ILLEGAL_ADDRESS (700: words for "
            "700). An earlier kernel of this or another library accessed memory out of bounds; this process can no "
            "longer use the GPU. Check pointers and sizes, or run under compute-sanitizer.");
}

static void launching(void) {
    struct device device;
    struct device_scope scope;
    struct kernel *scale, *ring, *again, *opaque;
    struct fake_counts counts;
    const struct driver *driver;
    const struct kernel_needs scale_needs = {.argument_bytes = sizeof(struct arguments)},
                              ring_needs = {.cluster = 16, .shared_bytes = 200 << 10};
    open_fake();
    DO(driver_get(&driver));
    DO(device_find(&device, WEFT_DEVICE_CUDA, 1));
    const struct code *code = compile_text(program_text, "sm_90a");
    DO(kernel_load(&scale, &device, code, "scale", &scale_needs));
    DO(kernel_load(&ring, &device, code, "ring", &ring_needs));
    DO(kernel_load(&again, &device, code, "ring", &(struct kernel_needs){.shared_bytes = 100 << 10}));
    DO(kernel_load(&opaque, &device, code, "opaque",
                   &(struct kernel_needs){.argument_bytes = 999})); /* this cannot be checked */
    cache_release(code);
    fake->counts(&counts);
    CHECK(counts.modules == 1 && counts.current == 0, "%d modules: one for all", counts.modules);
    CHECK(scale->registers == 40 && scale->local_bytes == 0 && scale->threads_per_block == 1024, "attributes");
    CHECK(scale->shared_bytes == 0 && ring->shared_bytes == 200 << 10 && ring->max_dynamic_shared_bytes == 227 << 10,
          "shared memory");
    kernel_release(again); /* loading the smaller program did not affect the larger one */
    kernel_release(opaque);
    DO(device_enter(&scope, &device));
    fake->begin_execution();
    check_launches(scale, ring, driver);
    fake->end_execution();
    check_limits(scale);
    device_leave(&scope);
    kernel_release(scale);
    kernel_release(ring);
    kernel_release(NULL);
    check_clean(1);
}

/* A kernel with 1 KiB of static shared memory has 47 KiB without opting in; one byte more opts in to the maximum. */
static void check_shared_of_tile(const struct device *device, const struct code *code) {
    static const int limits[][2] = {{(47 << 10) - 1, 47 << 10},
                                    {47 << 10, 47 << 10},
                                    {(47 << 10) + 1, 226 << 10},
                                    {48 << 10, 226 << 10},
                                    {226 << 10, 226 << 10}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct kernel *kernel;
        DO(kernel_load(&kernel, device, code, "tile",
                       &(struct kernel_needs){.argument_bytes = 24, .shared_bytes = limits[i][0]}));
        CHECK(kernel->shared_bytes == limits[i][0] + 1024 && kernel->max_dynamic_shared_bytes == limits[i][1],
              "%d bytes: %d, at most %d", limits[i][0], kernel->shared_bytes, kernel->max_dynamic_shared_bytes);
        kernel_release(kernel);
    }
}

static void bad_kernels(void) {
    struct device device;
    struct kernel *kernel;
    const struct code *code = compile_text(program_text, "sm_90a"), *other;
    const char old_cubin[] = "FAKECUBIN sm_80a\nkernel scale 24 0\n";
    open_fake();
    DO(device_find(&device, WEFT_DEVICE_CUDA, 0));
    REFUSED(kernel_load(&kernel, &device, code, "scalar", &(struct kernel_needs){0}),
            WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
            "cuda:0: finding kernel 'scalar' in 'test.cu': the CUDA driver returned CUDA_ERROR_NOT_FOUND (500: words "
            "for 500). See nvidia-smi and the kernel log.");
    CHECK(!kernel, "a refused kernel_load gives none");
    REFUSED(
        kernel_load(&kernel, &device, code, "scale", &(struct kernel_needs){.argument_bytes = 32}),
        WEFT_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM,
        "cuda:0: kernel 'scale': the host passes one struct of 32 bytes, the kernel expects 24 bytes. This is a defect "
        "of Weft: report it with this text.");
    REFUSED(kernel_load(&kernel, &device, code, "ring", &(struct kernel_needs){.argument_bytes = 8}),
            WEFT_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM,
            "cuda:0: kernel 'ring': the host passes one struct of 8 bytes, the kernel expects 0 bytes. This is a "
            "defect of Weft: "
            "report it with this text.");
    REFUSED(kernel_load(&kernel, &device, code, "tile",
                        &(struct kernel_needs){.argument_bytes = 24, .shared_bytes = (226 << 10) + 1}),
            WEFT_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
            "cuda:0 (Fake GPU 0): kernel 'tile': a block may use 232448 bytes of shared memory, this one needs 1024 + "
            "231425. Choose a smaller tile.");
    DO(kernel_load(&kernel, &device, code, "tile",
                   &(struct kernel_needs){.argument_bytes = 24, .shared_bytes = 226 << 10}));
    kernel_release(kernel);
    check_shared_of_tile(&device, code);
    cache_release(code);
    DO(cache_adopt(&other, "saved.cu", old_cubin, sizeof old_cubin, false));
    REFUSED(kernel_load(&kernel, &device, other, "scale", &(struct kernel_needs){0}),
            WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
            "cuda:0 (Fake GPU 0): loading 'saved.cu', log: a log of the loader: the CUDA driver returned "
            "CUDA_ERROR_NO_BINARY_FOR_GPU (209: words for 209). The code was compiled for another GPU: build the plan "
            "here.");
    cache_release(other);
    check_clean(1);
}

/* A driver before 12.4 cannot report the arguments of a kernel. */
static void older_driver(void) {
    struct device device;
    struct kernel *kernel;
    open_fake();
    DO(device_find(&device, WEFT_DEVICE_CUDA, 0));
    const struct code *code = compile_text(program_text, "sm_90a");
    DO(kernel_load(&kernel, &device, code, "scale", &(struct kernel_needs){.argument_bytes = 32}));
    kernel_release(kernel);
    cache_release(code);
    check_clean(1);
}

static void chip_newer_than_compiler(void) {
    struct device device;
    struct kernel *kernel;
    char arch[16];
    open_fake();
    DO(device_find(&device, WEFT_DEVICE_CUDA, 0));
    device_arch(arch, &device);
    const struct code *code = compile_text(program_text, arch);
    CHECK(code->is_ptx && strstr(code->image, ".target sm_120\n"), "%s", (const char *)code->image);
    EXACTLY(code->log, "weft: NVRTC 13.0 does not support this chip; compiled to PTX of compute_120 for the driver\n");
    DO(kernel_load(&kernel, &device, code, "scale",
                   &(struct kernel_needs){.argument_bytes = sizeof(struct arguments)}));
    kernel_release(kernel);
    cache_release(code);
    check_clean(1);
}

/* ---- Tensor maps and timing -------------------------------------------------------------------------------------- */

static void check_tensor_maps(const struct driver *driver) {
    struct cuda_tensor_map map;
    struct tensor_map held; /* the fake driver's content of these bytes */
    const struct tensor_map_form right = {.type = TENSOR_MAP_BF16,
                                          .rank = 3,
                                          .dims = {100, 50, 4},
                                          .strides = {208, 208 * 50},
                                          .box = {64, 128, 1},
                                          .swizzle = TENSOR_MAP_128B,
                                          .promotion = TENSOR_MAP_L2_128B};
    struct tensor_map_form form = right;
    DO(tensor_map_tiled(&map, driver, &form, 0x10000));
    memcpy(&held, &map, sizeof held);
    CHECK(held.address == 0x10000 && held.type == 9 && held.rank == 3 && held.last[0] == 99, "tiled");
    CHECK(held.strides[1] == 208 * 50 && held.box[1] == 128 && held.swizzle == 3 && !held.is_im2col, "tiled");
    form.lower[0] = -1, form.upper[0] = -2, form.channels = 64, form.pixels = 128;
    DO(tensor_map_im2col(&map, driver, &form, 0x10000));
    memcpy(&held, &map, sizeof held);
    CHECK(held.is_im2col && held.lower[0] == -1 && held.upper[0] == -2 && held.box[0] == 64, "im2col");

    struct {
        struct tensor_map_form form;
        uint64_t address;
        bool is_im2col;
        const char *rule;
    } wrong[] = {
        {right, 0x10000, false, "the rank is 1 to 5, for im2col 3 to 5"},
        {right, 0x10008, false, "the address is a multiple of 16"},
        {right, 0x10000, false, "a dimension has 1 to 2^32 elements"},
        {right, 0x10000, false, "a stride is a multiple of 16 bytes below 2^40"},
        {right, 0x10000, false, "a step is 1 to 8"},
        {right, 0x10000, false, "a box has 1 to 256 elements in each dimension"},
        {right, 0x10000, false, "a row of the box is a multiple of 16 bytes"},
        {right, 0x10000, false, "a row of the box is no longer than the swizzle"},
        {right, 0x10000, true, "an im2col copy has at most 256 channels and 1024 pixels"},
        {right, 0x10000, false, "one that Weft does not check"},
    };
    wrong[0].form.rank = 6;
    wrong[2].form.dims[1] = 0;
    wrong[3].form.strides[0] = 200;
    wrong[4].form.steps[0] = 9;
    wrong[5].form.box[1] = 257;
    wrong[6].form.box[0] = 4;
    wrong[7].form.box[0] = 128;
    wrong[8].form.channels = 64, wrong[8].form.pixels = 1025;
    wrong[9].form.promotion = (enum tensor_map_promotion)9;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct tensor_map_form *f = &wrong[i].form;
        REFUSED(wrong[i].is_im2col ? tensor_map_im2col(&map, driver, f, wrong[i].address)
                                   : tensor_map_tiled(&map, driver, f, wrong[i].address),
                WEFT_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE,
                "tensor map of rank %d at 0x%llx: the driver refused it; the rule it breaks: %s. dims[0] is 100, "
                "strides[0] %llu, box [%u,%u], channels %u, pixels %u, swizzle 3. This is a defect of Weft: report it "
                "with this text.",
                f->rank, (unsigned long long)wrong[i].address, wrong[i].rule, (unsigned long long)f->strides[0],
                f->box[0], f->box[1], f->channels, f->pixels);
    }
}

static void check_memory_and_time(const struct driver *driver) {
    struct stopwatch watch;
    double seconds;
    uint64_t memory;
    struct fake_counts counts;
    DO(memory_make(&memory, driver, 0));
    memory_free(driver, memory);
    memory_free(driver, 0);
    fake->fail_at(1, 2);
    REFUSED(memory_make(&memory, driver, 1000), WEFT_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
            "allocating 1000 bytes of device memory: the CUDA driver returned CUDA_ERROR_OUT_OF_MEMORY (2: words for "
            "2). Free device memory, or set a smaller workspace limit.");
    CHECK(memory == 0, "none given");
    DO(stopwatch_make(&watch, driver, 3));
    for (int i = 0; i < 3; i++)
        DO(stopwatch_mark(&watch, NULL));
    DO(stopwatch_wait(&watch));
    DO(stopwatch_read(&seconds, &watch, 1, 2));
    CHECK(seconds == 0.25e-3, "%g", seconds);
    DO(stream_wait(driver, NULL));
    fake->counts(&counts);
    CHECK(counts.events == 3, "%d events", counts.events);
    stopwatch_free(&watch);
    stopwatch_free(&watch);
}

static void maps_and_time(void) {
    const struct driver *driver;
    struct device device;
    struct device_scope scope;
    open_fake();
    DO(driver_get(&driver));
    DO(device_find(&device, WEFT_DEVICE_CUDA, 0));
    DO(device_enter(&scope, &device));
    check_tensor_maps(driver);
    check_memory_and_time(driver);
    device_leave(&scope);
    check_clean(1);
}

/* ---- Each call failing in turn ----------------------------------------------------------------------------------- */

static weftStatus_t use_kernels(const struct driver *driver, const struct device *device, const struct code *code) {
    struct kernel *scale = NULL, *ring = NULL;
    struct stopwatch watch = {0};
    uint64_t memory = 0;
    double seconds;
    struct arguments arguments = {0};
    weftStatus_t status = kernel_load(&scale, device, code, "scale", &(struct kernel_needs){.argument_bytes = 24});
    if (!status)
        status =
            kernel_load(&ring, device, code, "ring", &(struct kernel_needs){.cluster = 16, .shared_bytes = 100 << 10});
    if (!status)
        status = memory_make(&memory, driver, 256);
    if (!status)
        status = stopwatch_make(&watch, driver, 2);
    if (!status)
        status = stopwatch_mark(&watch, NULL);
    if (!status)
        status = launch_copy(driver, memory, memory + 128, 128, NULL);
    if (!status)
        status = launch_kernel(
            &(struct launch){.kernel = scale, .grid = {1, 1, 1}, .block = {1, 1, 1}, .arguments = &arguments}, NULL);
    if (!status)
        status = stopwatch_mark(&watch, NULL);
    if (!status)
        status = stopwatch_wait(&watch);
    if (!status)
        status = stopwatch_read(&seconds, &watch, 0, 1);
    if (!status)
        status = stream_wait(driver, NULL);
    stopwatch_free(&watch);
    memory_free(driver, memory);
    kernel_release(ring);
    kernel_release(scale);
    return status;
}

/* Runtime calls of a plan: find, compile, enter, load, run, release. */
static weftStatus_t build_and_run(void) {
    const struct driver *driver;
    struct device device;
    struct device_scope scope;
    const struct code *code;
    struct program program = program_of(program_text);
    TRY(driver_get(&driver));
    TRY(device_find(&device, WEFT_DEVICE_CUDA, 0));
    TRY(cache_get(&code, &program, "sm_90a"));
    weftStatus_t status = device_enter(&scope, &device);
    if (!status) {
        status = use_kernels(driver, &device, code);
        device_leave(&scope);
    }
    cache_release(code);
    return status;
}

static int64_t failing_call, *all_calls; /* all_calls is shared with child processes */

static void failing(void) {
    open_fake();
    fake->fail_at(failing_call, 999);
    status_clear();
    weftStatus_t status = build_and_run();
    const char *call = fake->failed_call();
    CHECK(call, "call %lld did not come", (long long)failing_call);
    if (!call)
        return;
    bool is_start = strcmp(call, "cuInit") == 0 || strcmp(call, "cuDeviceGetCount") == 0;
    if (status || !is_cleanup(call)) {
        CHECK(status == WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "%s: %s", call, weftGetErrorString(status));
        CHECK(strstr(last_error(),
                     " returned CUDA_ERROR_UNKNOWN (999: words for 999). See nvidia-smi and the kernel log."),
              "%s: %s", call, last_error());
    }
    fake->fail_at(0, 0);
    if (is_start || is_cleanup(call))
        return;
    check_clean(-1);
    DO(build_and_run());
    check_clean(1);
}

static void counting(void) {
    open_fake();
    DO(build_and_run());
    check_clean(1);
    *all_calls = fake->calls();
}

static void test_each_call_failing(const char *driver, const char *compiler) {
    all_calls = mmap(NULL, sizeof *all_calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    IN_CHILD(counting, driver, compiler);
    CHECK(*all_calls > 50, "%lld calls", (long long)*all_calls);
    for (failing_call = 1; failing_call <= *all_calls; failing_call++) {
        int before = harness_failures;
        IN_CHILD(failing, driver, compiler);
        if (harness_failures != before)
            printf("  that was call %lld failing\n", (long long)failing_call);
    }
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static void *build_plans(void *index) {
    for (int i = 0; i < 60; i++) {
        char text[512];
        const struct code *code;
        struct kernel *kernel;
        struct device_scope scope;
        const struct device *device = &gpus[(i + (int)(intptr_t)index) % 2];
        struct arguments arguments = {.count = i};
        snprintf(text, sizeof text, "// variant %d\n// fake: scale 24 0\n__global__ void scale(arguments a) {}\n",
                 i % 7);
        struct program program = program_of(text);
        DO(cache_get(&code, &program, "sm_90a"));
        DO(kernel_load(&kernel, device, code, "scale", &(struct kernel_needs){.argument_bytes = sizeof arguments}));
        cache_release(code);
        DO(device_enter(&scope, device));
        DO(launch_kernel(
            &(struct launch){.kernel = kernel, .grid = {i + 1, 1, 1}, .block = {32, 1, 1}, .arguments = &arguments},
            NULL));
        device_leave(&scope);
        kernel_release(kernel);
    }
    return NULL;
}

static void threads(void) {
    open_fake();
    DO(device_find(&gpus[0], WEFT_DEVICE_CUDA, 0));
    DO(device_find(&gpus[1], WEFT_DEVICE_CUDA, 1));
    run_threads(build_plans);
    CHECK(fake->launches() == THREADS * 60, "%lld launches", (long long)fake->launches());
    atomic_int *compiles = dlsym(dlopen(FAKE_NVRTC, RTLD_NOW), "fake_nvrtc_compiles");
    CHECK(*compiles == 7, "%d compilations of 7 programs", *compiles);
    check_clean(2);
}

/* ---- Truncated files --------------------------------------------------------------------------------------------- */

/* Writes an ldconfig cache that lists `path` as libx.so.1. `front` is the header that older versions write first. */
static const char *write_loader_cache(const char *path, const char *front) {
    struct {
        char magic[20];
        uint32_t count, string_bytes, unused[5];
        int32_t flags;
        uint32_t name, path, version;
        uint64_t capabilities;
        char names[16];
    } cache = {.count = 1, .flags = 0x303, .names = "libx.so.1"};
    memcpy(cache.magic, "glibc-ld.so.cache1.1", sizeof cache.magic);
    cache.name = offsetof(__typeof__(cache), names);
    cache.path = sizeof cache;
    const char *written = place("ld.so.cache");
    FILE *file = fopen(written, "wb");
    if (!file || fputs(front, file) < 0 || fwrite(&cache, sizeof cache, 1, file) != 1 ||
        fwrite(path, strlen(path) + 1, 1, file) != 1 || fclose(file) != 0)
        abort();
    return written;
}

static void test_files_of_the_loader_cache(void) {
    static const char *const fronts[] = {"", "ld.so-1.7.0 and entries"};
    char why[LIBRARY_WHY_BYTES] = "", half[512];
    size_t bytes = 0;
    char *data = read_whole(FAKE_CUDA, &bytes);
    snprintf(half, sizeof half, "%s", place("half.so"));
    FILE *file = fopen(half, "wb");
    if (!file || fwrite(data, 4096, 1, file) != 1 || fclose(file) != 0)
        abort();
    free(data);
    for (int i = 0; i < 2; i++) {
        const char *cache = write_loader_cache(half, fronts[i]);
        CHECK(library_is_truncated_for_loader(cache, "libx.so.1", why), "a file that is cut off");
        CHECK(strstr(why, "the file is truncated: its headers describe "), "%s", why);
        CHECK(!library_is_truncated_for_loader(cache, "libx.so", why), "another name");
        CHECK(!library_is_truncated_for_loader(write_loader_cache(FAKE_CUDA, fronts[i]), "libx.so.1", why),
              "a whole file");
    }
    CHECK(!library_is_truncated_for_loader("/nowhere", "libx.so.1", why), "no cache");
    CHECK(!library_is_truncated_for_loader(FAKE_CUDA, "libx.so.1", why), "another file");
}

int main(void) {
    const char *const driver = "WEFT_LIBCUDA=" FAKE_CUDA, *const compiler = "WEFT_NVRTC=" FAKE_NVRTC;
    RUN(test_no_driver());
    RUN(test_files_of_the_loader_cache());
    IN_CHILD(forked, driver);
    IN_CHILD(cpu_only, driver, "WEFT_DEVICE=cpu");
    IN_CHILD(default_device, driver);
    IN_CHILD(two_devices, driver);
    IN_CHILD(one_old_device, driver, "FAKE_CUDA_ARCH=70", "FAKE_CUDA_DEVICES=1");
    IN_CHILD(default_device, driver, "WEFT_DEVICE=cpu");
    IN_CHILD(default_device, driver, "WEFT_DEVICE=cuda");
    IN_CHILD(default_device, driver, "WEFT_DEVICE=cuda:0");
    IN_CHILD(default_device, driver, "WEFT_DEVICE=cuda:1");
    IN_CHILD(absent_default_device, driver, "WEFT_DEVICE=cuda:5");
    IN_CHILD(bad_default_device, driver, "WEFT_DEVICE=gpu");
    IN_CHILD(bad_default_device, driver, "WEFT_DEVICE=cuda:");
    IN_CHILD(bad_default_device, driver, "WEFT_DEVICE=cuda:1x");
    IN_CHILD(bad_default_device, driver, "WEFT_DEVICE=cuda:-1");
    RUN(test_described_devices());
    IN_CHILD(entering, driver);
    IN_CHILD(launching, driver, compiler);
    IN_CHILD(bad_kernels, driver, compiler);
    install_nvrtc("nvrtc12", 12, "version 12 2\n");
    IN_CHILD(older_driver, driver, place_variable("WEFT_NVRTC", "nvrtc12"), "FAKE_CUDA_VERSION=12020");
    IN_CHILD(chip_newer_than_compiler, driver, compiler, "FAKE_CUDA_ARCH=130");
    IN_CHILD(maps_and_time, driver);
    RUN(test_each_call_failing(driver, compiler));
    IN_CHILD(threads, driver, compiler);
    remove_scratch();
    return harness_end();
}
