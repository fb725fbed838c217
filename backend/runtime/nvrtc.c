/* SPDX-License-Identifier: Apache-2.0 */
/* Finding, judging and using copies of NVRTC. The list of copies only grows and its members never move, so a choice
   stays good without the lock. */
#define _GNU_SOURCE
#include "runtime/nvrtc.h"
#include "base/trace.h"
#include "runtime/driver.h"
#include "runtime/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* OLDEST_MAJOR: as the oldest driver that Weft takes. NEWEST_MAJOR: how far file names are tried; versions beyond the
   ones known today are taken as they come. ARCHS_MAX: a copy lists about 20. */
enum { OLDEST_MAJOR = 12, NEWEST_MAJOR = 19, ARCHS_MAX = 64 };
/* Of nvrtcResult: the three that get words of their own. */
enum { NVRTC_OUT_OF_MEMORY = 1, NVRTC_COMPILATION = 6, NVRTC_BUILTIN_OPERATION_FAILURE = 7 };

/* One copy of the library. */
struct nvrtc {
    /* In the order found, which decides between equal versions. */
    struct nvrtc *next;
    char path[PATH_MAX];
    const char *found_by;
    dev_t device; /* with inode: which file it is, whatever the path */
    ino_t inode;
    int64_t file_bytes;
    int version; /* 0: not usable, for the reason in fault */
    char fault[64 + LIBRARY_WHY_BYTES];
    bool has_builtins; /* its libnvrtc-builtins could be loaded */
    /* archs: 90 for sm_90, ascending as NVRTC lists them. */
    int arch_count, archs[ARCHS_MAX];

    int (*get_version)(int *major, int *minor);
    int (*get_arch_count)(int *count);
    int (*get_archs)(int *archs);
    const char *(*get_error_string)(int result);
    int (*create_program)(void **program, const char *text, const char *name, int headers, const char *const *texts,
                          const char *const *names);
    int (*destroy_program)(void **program);
    int (*compile_program)(void *program, int options, const char *const *texts);
    int (*get_cubin_size)(void *program, size_t *bytes);
    int (*get_cubin)(void *program, char *cubin);
    int (*get_ptx_size)(void *program, size_t *bytes);
    int (*get_ptx)(void *program, char *ptx);
    int (*get_log_size)(void *program, size_t *bytes);
    int (*get_log)(void *program, char *log);
};

/* All are needed: a copy that lacks one is kept with its fault, for the report. */
static const struct {
    const char *name;
    size_t offset;
} entries[] = {
    {"nvrtcVersion", offsetof(struct nvrtc, get_version)},
    {"nvrtcGetNumSupportedArchs", offsetof(struct nvrtc, get_arch_count)},
    {"nvrtcGetSupportedArchs", offsetof(struct nvrtc, get_archs)},
    {"nvrtcGetErrorString", offsetof(struct nvrtc, get_error_string)},
    {"nvrtcCreateProgram", offsetof(struct nvrtc, create_program)},
    {"nvrtcDestroyProgram", offsetof(struct nvrtc, destroy_program)},
    {"nvrtcCompileProgram", offsetof(struct nvrtc, compile_program)},
    {"nvrtcGetCUBINSize", offsetof(struct nvrtc, get_cubin_size)},
    {"nvrtcGetCUBIN", offsetof(struct nvrtc, get_cubin)},
    {"nvrtcGetPTXSize", offsetof(struct nvrtc, get_ptx_size)},
    {"nvrtcGetPTX", offsetof(struct nvrtc, get_ptx)},
    {"nvrtcGetProgramLogSize", offsetof(struct nvrtc, get_log_size)},
    {"nvrtcGetProgramLog", offsetof(struct nvrtc, get_log)},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the three below */
static struct nvrtc *copies, **last_copy = &copies;      /* in the order found */
static char *search_paths;
static bool is_searched;

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

/* A copy that does not serve stays in the list, with the reason: the report and messages say why. */
static void fault(struct nvrtc *copy, const char *what, const char *detail) {
    snprintf(copy->fault, sizeof copy->fault, "%s%s", what, detail);
    copy->version = 0;
}

/* Loads the builtins library by its full path: NVRTC itself looks for it by name, and then finds it whatever folders
   the loader knows. A file that is cut off would end the process when NVRTC loads it. */
static void load_builtins(struct nvrtc *copy, int major, int minor) {
    char path[PATH_MAX + 64], why[LIBRARY_WHY_BYTES];
    int folder = (int)(strrchr(copy->path, '/') - copy->path);
    snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d", folder, copy->path, major, minor);
    if (library_is_cut_off(path, why))
        fault(copy, "its libnvrtc-builtins does not serve: ", why);
    else
        copy->has_builtins = library_open(path, why) || library_open(strrchr(path, '/') + 1, why);
}

/* Sets version and archs, or fault. */
static void load_copy(struct nvrtc *copy) {
    int major = 0, minor = 0, count = 0;
    char why[LIBRARY_WHY_BYTES];
    /* Copies stay loaded, because programs may be under way in them. Their symbols are local: copies must not see each
       other's. */
    void *library = library_open(copy->path, why);
    if (!library) {
        fault(copy, "it cannot be loaded: ", why);
        return;
    }
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *address = dlsym(library, entries[i].name);
        memcpy((char *)copy + entries[i].offset, &address, sizeof address);
        if (!address) {
            fault(copy, "it lacks ", entries[i].name);
            return;
        }
    }
    if (copy->get_version(&major, &minor) || copy->get_arch_count(&count) || count < 1 || count > ARCHS_MAX ||
        copy->get_archs(copy->archs)) {
        fault(copy, "it does not tell its version and architectures", "");
        return;
    }
    /* As the driver counts CUDA versions, so that the two compare. */
    copy->version = major * 1000 + minor * 10;
    copy->arch_count = count;
    load_builtins(copy, major, minor);
}

/* One file under several names (links, the folders of several settings) is taken once, as found first. */
static void add_file(const char *path, const char *found_by) {
    struct stat file;
    char real[PATH_MAX];
    if (!realpath(path, real) || stat(real, &file) || !S_ISREG(file.st_mode))
        return;
    for (const struct nvrtc *copy = copies; copy; copy = copy->next)
        if (copy->device == file.st_dev && copy->inode == file.st_ino)
            return;
    /* Without memory a copy is as if it were not there. */
    struct nvrtc *copy = calloc(1, sizeof *copy);
    if (!copy)
        return;
    snprintf(copy->path, sizeof copy->path, "%s", real);
    copy->found_by = found_by;
    copy->device = file.st_dev;
    copy->inode = file.st_ino;
    copy->file_bytes = file.st_size;
    load_copy(copy);
    *last_copy = copy;
    last_copy = &copy->next;
}

/* `inside` begins with a slash or is empty. Major versions above and below what serves are looked for too, so that the
   report can say why they do not. */
static void add_folder(const char *folder, const char *inside, const char *found_by) {
    char path[PATH_MAX];
    for (int major = NEWEST_MAJOR; major >= OLDEST_MAJOR - 1; major--)
        if (snprintf(path, sizeof path, "%s%s/libnvrtc.so.%d", folder, inside, major) < PATH_MAX)
            add_file(path, found_by);
}

/* NVIDIA's wheels: from CUDA 13 on all parts share one folder, those of CUDA 12 have one each. */
static void add_wheels(const char *site_packages, const char *found_by) {
    add_folder(site_packages, "/nvidia/cu13/lib", found_by);
    add_folder(site_packages, "/nvidia/cuda_nvrtc/lib", found_by);
}

/* Files and folders divided by colons. */
static void add_list(const char *paths, const char *found_by) {
    char path[PATH_MAX];
    /* Past the end of this path, and past the colon where there is one. */
    for (const char *at = paths; *at; at += strcspn(at, ":"), at += *at == ':') {
        int length = (int)strcspn(at, ":");
        /* Longer paths name no file. */
        if (!length || snprintf(path, sizeof path, "%.*s", length, at) >= PATH_MAX)
            continue;
        /* Each may be the library itself, its folder, or a site-packages. */
        add_file(path, found_by);
        add_folder(path, "", found_by);
        add_wheels(path, found_by);
    }
}

/* Called for each object of the process under the loader's lock: loading inside would lock up, so paths are only
   noted. */
static int note_loaded(struct dl_phdr_info *info, size_t bytes, void *paths) {
    (void)bytes;
    const char *name = strrchr(info->dlpi_name, '/');
    if (name && strncmp(name, "/libnvrtc.so", 12) == 0)
        text_add(paths, "%s:", info->dlpi_name);
    return 0;
}

/* A copy that PyTorch, say, has loaded costs no second load. */
static void add_loaded(void) {
    struct text paths;
    text_init(&paths);
    dl_iterate_phdr(note_loaded, &paths);
    add_list(text_string(&paths), "loaded already");
    text_free(&paths);
}

/* Wheels install into one site-packages: libweft into weft/lib, NVRTC into nvidia. */
static void add_siblings(void) {
    Dl_info self;
    char folder[PATH_MAX], up[PATH_MAX + 8];
    /* The address of any variable of this library tells the library's own file. */
    if (!dladdr((void *)&copies, &self) || !realpath(self.dli_fname, folder) || !strrchr(folder, '/'))
        return;
    *strrchr(folder, '/') = '\0';
    /* "/../.." and then "/..": site-packages from weft/lib, and from a libweft that lies one folder down. */
    for (const char *step = "/../.."; *step; step += 3) {
        snprintf(up, sizeof up, "%s%s", folder, step);
        add_wheels(up, "beside libweft");
    }
}

/* By file name alone, as the system finds libraries; the loader then tells the path. */
static void add_from_loader(void) {
    char name[32], why[LIBRARY_WHY_BYTES];
    struct link_map *map;
    for (int major = NEWEST_MAJOR; major >= OLDEST_MAJOR; major--) {
        snprintf(name, sizeof name, "libnvrtc.so.%d", major);
        void *library = library_open(name, why);
        if (library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
            add_file(map->l_name, "system loader");
    }
}

/* The variables first: they are set on purpose, /usr/local has what the system has. */
static void add_toolkits(void) {
    static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH"};
    glob_t found;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i])) {
            add_folder(getenv(variables[i]), "/lib64", variables[i]);
            add_folder(getenv(variables[i]), "/lib", variables[i]);
        }
    if (glob("/usr/local/cuda*", 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            add_folder(found.gl_pathv[i], "/lib64", "CUDA toolkit");
    globfree(&found);
}

/* Called with the lock held. */
static void search(void) {
    if (is_searched)
        return;
    /* At once, also where nothing is found: searching again would find nothing new, at the price of dozens of failed
       loads. */
    is_searched = true;
    const char *forced = getenv("WEFT_NVRTC");
    if (forced && *forced) {
        add_list(forced, "WEFT_NVRTC");
        return;
    }
    add_loaded();
    if (search_paths)
        add_list(search_paths, "search paths");
    add_siblings();
    if (getenv("CONDA_PREFIX"))
        add_folder(getenv("CONDA_PREFIX"), "/lib", "CONDA_PREFIX");
    add_from_loader();
    add_toolkits();
}

weftStatus_t nvrtc_set_search_paths(const char *paths) {
    char *copy = paths ? strdup(paths) : NULL;
    if (paths && !copy)
        return status_no_memory(strlen(paths));
    pthread_mutex_lock(&lock);
    /* Copies found before stay: choices point to them. */
    free(search_paths);
    search_paths = copy;
    is_searched = false;
    pthread_mutex_unlock(&lock);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* The newest architecture that a copy knows and that is not newer than `arch`; 0: none. */
static int newest_known(const struct nvrtc *copy, int arch) {
    int newest = 0;
    for (int i = 0; i < copy->arch_count; i++)
        if (copy->archs[i] <= arch && copy->archs[i] > newest)
            newest = copy->archs[i];
    return newest;
}

/* SUCCESS when a copy can compile for `arch` (90) and the driver (its version; 0: there is none), else a status and why
   not, in words. */
static weftStatus_t judge(char why[512], const struct nvrtc *copy, int arch, int driver) {
    if (!copy->version)
        snprintf(why, 512, "%s", copy->fault);
    else if (copy->version / 1000 < OLDEST_MAJOR)
        snprintf(why, 512, "it is older than 12.0");
    if (!copy->version || copy->version / 1000 < OLDEST_MAJOR)
        return WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING;
    if (newest_known(copy, arch) != arch) {
        snprintf(why, 512, "it knows sm_%d to sm_%d but not sm_%d", copy->archs[0], copy->archs[copy->arch_count - 1],
                 arch);
        return WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH;
    }
    /* Within a major version a newer compiler's cubins run on older drivers (minor version compatibility). */
    if (driver && copy->version / 1000 > driver / 1000) {
        snprintf(why, 512, "it is newer than the driver, which speaks CUDA %d.%d", driver / 1000, driver % 1000 / 10);
        return WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER;
    }
    return WEFT_STATUS_SUCCESS;
}

/* True if `copy` is preferred to `best`, the best of those found before it: a copy without its builtins cannot compile,
   so it is the last resort; then the version decides, and the first found of equal ones stays. */
static bool is_better(const struct nvrtc *copy, const struct nvrtc *best) {
    if (!best || copy->has_builtins != best->has_builtins)
        return !best || copy->has_builtins;
    return copy->version > best->version;
}

static const struct nvrtc *choose_copy(int arch, int driver) {
    const struct nvrtc *best = NULL;
    char why[512];
    for (const struct nvrtc *copy = copies; copy; copy = copy->next)
        if (judge(why, copy, arch, driver) == WEFT_STATUS_SUCCESS && is_better(copy, best))
            best = copy;
    return best;
}

/* For a chip that no copy knows: the driver can translate PTX of an older one, if the PTX is not newer than itself. */
static const struct nvrtc *choose_for_ptx(int arch, int driver) {
    const struct nvrtc *best = NULL;
    for (const struct nvrtc *copy = copies; copy; copy = copy->next) {
        /* No newer than the driver to the minor version: a driver translates PTX up to its own version alone, unlike
           cubins. */
        bool serves = copy->version / 1000 >= OLDEST_MAJOR && newest_known(copy, arch) &&
                      newest_known(copy, arch) < arch && (!driver || copy->version <= driver);
        if (serves && is_better(copy, best))
            best = copy;
    }
    return best;
}

/* The command that brings a copy that serves; `driver` is 0 where there is none. */
static const char *how_to_install(int driver) {
    return driver && driver / 1000 < 13
               ? "pip install nvidia-cuda-nvrtc-cu12"
               : "pip install nvidia-cuda-nvrtc (needs driver 580 or newer; nvidia-cuda-nvrtc-cu12 needs 525)";
}

/* Nothing serves: says why of each copy. The status is that of the newest one. */
static weftStatus_t fail_to_choose(const char *arch_name, int arch, int driver) {
    const char *forced = getenv("WEFT_NVRTC");
    bool is_forced = forced && *forced;
    weftStatus_t status = WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING;
    /* A copy that cannot be used has version 0: any other is newer. */
    int newest = -1, count = 0;
    struct text list;
    char why[512];
    text_init(&list);
    for (const struct nvrtc *copy = copies; copy; copy = copy->next, count++) {
        weftStatus_t verdict = judge(why, copy, arch, driver);
        text_add(&list, "%s%s", count ? "; " : "", copy->path);
        if (copy->version)
            text_add(&list, " (%d.%d)", copy->version / 1000, copy->version % 1000 / 10);
        text_add(&list, ": %s", why);
        if (copy->version > newest) {
            newest = copy->version;
            status = verdict;
        }
    }
    if (count)
        status =
            status_fail(status,
                        "NVRTC: kernels for %s need a copy of 12.0 or newer that knows the chip%s; what was "
                        "found does not serve: %s. %s%s.",
                        arch_name, driver ? " and is no newer than the driver" : "", text_string(&list),
                        is_forced ? "Name another in WEFT_NVRTC, unset it, or: " : "Fix: ", how_to_install(driver));
    else if (is_forced)
        status = status_fail(status,
                             "NVRTC: WEFT_NVRTC is '%s', which neither is nor holds a libnvrtc.so.12 or newer. Name "
                             "its folder or file, or unset WEFT_NVRTC.",
                             forced);
    else
        status = status_fail(status,
                             "NVRTC: kernels are compiled by libnvrtc.so.12 or newer, and none was found among loaded "
                             "libraries, wheels, conda, the system's libraries and CUDA toolkits. Fix: %s; or set "
                             "WEFT_NVRTC to its folder.",
                             how_to_install(driver));
    text_free(&list);
    return status;
}

/* "sm_90a" is 90; 0: no such name. A suffix of letters does not count. */
static int arch_number(const char *arch) { return strncmp(arch, "sm_", 3) == 0 ? (int)strtol(arch + 3, NULL, 10) : 0; }

/* 0 without a driver: compiling needs none, and no copy is too new then. */
static int driver_version(void) {
    const struct driver *driver = driver_find();
    return driver ? driver->version : 0;
}

/* The architecture as asked for, with its suffix, becomes the target: NVRTC checks whether it knows "sm_90a". */
weftStatus_t nvrtc_choose(struct nvrtc_choice *choice, const char *arch) {
    int number = arch_number(arch), driver = driver_version();
    if (number < 10)
        FAIL(WEFT_STATUS_BAD_PARAM, "NVRTC: '%.40s' names no GPU architecture. Write it as \"sm_90\".", arch);
    memset(choice, 0, sizeof *choice);
    pthread_mutex_lock(&lock);
    /* Searches on the first call, and again after nvrtc_set_search_paths. */
    search();
    const struct nvrtc *copy = choose_copy(number, driver);
    snprintf(choice->target, sizeof choice->target, "%s", arch);
    if (!copy && (copy = choose_for_ptx(number, driver))) {
        choice->is_ptx = true;
        snprintf(choice->target, sizeof choice->target, "compute_%d", newest_known(copy, number));
    }
    weftStatus_t status = copy ? WEFT_STATUS_SUCCESS : fail_to_choose(arch, number, driver);
    pthread_mutex_unlock(&lock);
    if (copy) {
        choice->compiler = copy;
        choice->version = copy->version;
        choice->file_bytes = copy->file_bytes;
    }
    return status;
}

void nvrtc_report(struct text *json, const char *arch) {
    int number = arch_number(arch), driver = driver_version();
    char why[512];
    pthread_mutex_lock(&lock);
    search();
    /* A copy is either chosen or spare: PTX is the last resort. */
    const struct nvrtc *chosen = choose_copy(number, driver), *spare = chosen ? NULL : choose_for_ptx(number, driver);
    text_add(json, "[");
    for (const struct nvrtc *copy = copies; copy; copy = copy->next) {
        if (copy == chosen)
            snprintf(why, sizeof why, "chosen: the newest that serves the chip and the driver");
        else if (copy == spare)
            snprintf(why, sizeof why, "chosen as a last resort, for PTX: no copy knows sm_%d", number);
        else if (judge(why, copy, number, driver) == WEFT_STATUS_SUCCESS)
            snprintf(why, sizeof why,
                     /* Otherwise choose_copy takes the newest, and the first of equal ones. */
                     copy->has_builtins < chosen->has_builtins
                         ? "its libnvrtc-builtins is missing, and another is whole"
                     : copy->version < chosen->version ? "a newer one serves"
                                                       : "the same was found before");
        text_add(json, "%s{\"path\":", copy == copies ? "" : ",");
        text_json_string(json, copy->path);
        text_add(json, ",\"found_by\":\"%s\",\"version\":\"%d.%d\",\"archs\":[", copy->found_by, copy->version / 1000,
                 copy->version % 1000 / 10);
        for (int i = 0; i < copy->arch_count; i++)
            text_add(json, "%s%d", i ? "," : "", copy->archs[i]);
        text_add(json, "],\"builtins\":%s,\"is_chosen\":%s,\"verdict\":", copy->has_builtins ? "true" : "false",
                 copy == chosen || copy == spare ? "true" : "false");
        text_json_string(json, why);
        text_add(json, "}");
    }
    text_add(json, "]");
    pthread_mutex_unlock(&lock);
}

/* ---- Compiling --------------------------------------------------------------------------------------------------- */

/* Where a log speaks of an error: "lib/types.cuh(12): error: ...". */
struct log_error {
    const char *file, *words; /* in the log */
    int file_length, words_length, line;
};

/* The first line of a log that is "FILE(LINE): ... error ...: WORDS"; false where there is none. */
static bool find_error(struct log_error *error, const char *log) {
    for (const char *at = log; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        /* strstr looks beyond the line; whether `error` lies in it is asked below. */
        const char *end = at + strcspn(at, "\n"), *close = strstr(at, "): "), *open = close;
        const char *word = close ? strstr(close, "error") : NULL;
        if (!word || word > end)
            continue;
        /* Back to the parenthesis that opens the line's number: file names may hold others. */
        while (open > at && *open != '(')
            open--;
        const char *words = word + strcspn(word, ":\n");
        words += *words == ':';
        words += strspn(words, " ");
        *error = (struct log_error){at, words, (int)(open - at), (int)strcspn(words, "\n"), atoi(open + 1)};
        /* No file or no number: not of that form, so the whole log is shown. */
        return open > at && error->line > 0;
    }
    return false;
}

/* The text of line `line` (from 1), without its margin. */
static const char *find_line(const char *text, int line, int *length) {
    for (; line > 1 && *text; line--) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    text += strspn(text, " \t");
    *length = (int)strcspn(text, "\n");
    return text;
}

/* The text of the program or of a header by the name that the log has for it; NULL: a file of another's. */
static const char *find_text(const struct program *program, const char *file, int length) {
    if (strncmp(program->name, file, (size_t)length) == 0 && !program->name[length])
        return program->text;
    for (int i = 0; i < program->header_count; i++)
        if (strncmp(program->headers[i].name, file, (size_t)length) == 0 && !program->headers[i].name[length])
            return program->headers[i].text;
    return NULL;
}

/* `log` is never NULL. The text of the line is quoted, as users do not have the file. */
static weftStatus_t fail_to_compile(int result, const struct nvrtc_choice *choice, const struct program *program,
                                    const char *log) {
    const struct nvrtc *nvrtc = choice->compiler;
    struct log_error error;
    int major = choice->version / 1000, minor = choice->version % 1000 / 10, length = 0;
    const char *report = "This is a defect of Weft: report it with the program, which WEFT_DUMP_DIR=<folder> keeps";
    if (result == NVRTC_OUT_OF_MEMORY)
        FAIL(WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
             "NVRTC %d.%d, %s: out of host memory while '%s' was compiled. Free memory or build fewer plans at once.",
             major, minor, choice->target, program->name);
    if (result == NVRTC_BUILTIN_OPERATION_FAILURE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
             "NVRTC %d.%d: '%s' cannot use its own libnvrtc-builtins.so.%d.%d, which must lie beside it. Install NVRTC "
             "anew: %s.",
             major, minor, nvrtc->path, major, minor, how_to_install(choice->version));
    /* Other failures have no line: NVRTC's own words and the log must do. */
    if (result != NVRTC_COMPILATION || !find_error(&error, log))
        FAIL(WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, "NVRTC %d.%d, %s: '%s' does not compile: %s. %s. Log: %s",
             major, minor, choice->target, program->name, nvrtc->get_error_string(result), report,
             *log ? log : "empty");
    const char *text = find_text(program, error.file, error.file_length);
    const char *line = text ? find_line(text, error.line, &length) : "not ours";
    FAIL(WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED,
         "NVRTC %d.%d, %s: '%s' does not compile: %.*s line %d: %.*s: `%.*s`. %s. Log:\n%s", major, minor,
         choice->target, program->name, error.file_length, error.file, error.line, error.words_length, error.words,
         text ? length : 8, line, report, log);
}

/* Says in the log that the code is PTX, since nothing else would. Also of a compilation that failed, which the log
   explains. */
static weftStatus_t read_log(struct compiled *out, const struct nvrtc_choice *choice, void *program) {
    size_t bytes = 0;
    char note[128] = "";
    if (choice->is_ptx)
        snprintf(note, sizeof note, "weft: NVRTC %d.%d does not know this chip; compiled to PTX of %s for the driver\n",
                 choice->version / 1000, choice->version % 1000 / 10, choice->target);
    /* `bytes` counts the zero. */
    if (choice->compiler->get_log_size(program, &bytes))
        bytes = 0;
    out->log = calloc(1, strlen(note) + bytes + 1);
    if (!out->log)
        return status_no_memory(strlen(note) + bytes + 1);
    strcpy(out->log, note);
    if (bytes)
        choice->compiler->get_log(program, out->log + strlen(note));
    return WEFT_STATUS_SUCCESS;
}

/* On failure image may be set; compiled_free takes it with the rest. */
static weftStatus_t read_image(struct compiled *out, const struct nvrtc_choice *choice, void *program) {
    const struct nvrtc *nvrtc = choice->compiler;
    int result =
        choice->is_ptx ? nvrtc->get_ptx_size(program, &out->bytes) : nvrtc->get_cubin_size(program, &out->bytes);
    /* A size of 0 without an error: NVRTC gives no cubin for a virtual architecture. */
    if (!result && out->bytes) {
        out->image = malloc(out->bytes);
        if (!out->image)
            return status_no_memory(out->bytes);
        result = choice->is_ptx ? nvrtc->get_ptx(program, out->image) : nvrtc->get_cubin(program, out->image);
    }
    if (result || !out->bytes)
        FAIL(WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED,
             "NVRTC %d.%d, %s: it compiled a program but gave no code (%s). Install NVRTC anew: %s.",
             choice->version / 1000, choice->version % 1000 / 10, choice->target, nvrtc->get_error_string(result),
             how_to_install(choice->version));
    out->is_ptx = choice->is_ptx;
    return WEFT_STATUS_SUCCESS;
}

/* `options` has room for option_count + 1. The log is read first, so that failures have it. */
static weftStatus_t compile(struct compiled *out, const struct nvrtc_choice *choice, const struct program *program,
                            const char **options, void *handle) {
    char target[64];
    snprintf(target, sizeof target, "--gpu-architecture=%s", choice->target);
    /* The caller left room for it in front of the options. */
    options[0] = target;
    for (int i = 0; i < program->option_count; i++)
        options[i + 1] = program->options[i];
    int result = choice->compiler->compile_program(handle, program->option_count + 1, options);
    TRY(read_log(out, choice, handle));
    if (result)
        return fail_to_compile(result, choice, program, out->log);
    return read_image(out, choice, handle);
}

/* Runs without a lock: NVRTC compiles several programs at once, each with a handle of its own. */
weftStatus_t nvrtc_compile(struct compiled *out, const struct nvrtc_choice *choice, const struct program *program) {
    const struct nvrtc *nvrtc = choice->compiler;
    struct timespec start, end;
    void *handle = NULL;
    memset(out, 0, sizeof *out);
    /* One list for three: header texts, header names, options with the architecture. */
    size_t count = (size_t)program->header_count * 2 + (size_t)program->option_count + 1;
    const char **list = calloc(count, sizeof *list);
    if (!list)
        return status_no_memory(count * sizeof *list);
    for (int i = 0; i < program->header_count; i++) {
        list[i] = program->headers[i].text;
        list[program->header_count + i] = program->headers[i].name;
    }
    /* What compiling costs, for the log: a few hundred milliseconds are usual. */
    clock_gettime(CLOCK_MONOTONIC, &start);
    int result = nvrtc->create_program(&handle, program->text, program->name, program->header_count, list,
                                       list + program->header_count);
    weftStatus_t status = result ? fail_to_compile(result, choice, program, "")
                                 : compile(out, choice, program, list + 2 * program->header_count, handle);
    if (handle)
        nvrtc->destroy_program(&handle);
    free(list);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (!status)
        trace(WEFT_SEV_INFO, "NVRTC %d.%d: '%s' for %s compiled in %.0f ms, %zu bytes", choice->version / 1000,
              choice->version % 1000 / 10, program->name, choice->target,
              (double)(end.tv_sec - start.tv_sec) * 1e3 + (double)(end.tv_nsec - start.tv_nsec) / 1e6, out->bytes);
    return status;
}

void compiled_free(struct compiled *compiled) {
    free(compiled->image);
    free(compiled->log);
    memset(compiled, 0, sizeof *compiled);
}
