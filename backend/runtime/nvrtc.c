/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, judges and uses copies of NVRTC. The list of copies only grows and its members never move, so a chosen copy
   remains valid without the lock. */
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

/* OLDEST_MAJOR: the same as for drivers. NEWEST_MAJOR: the last version for which file names are tried; versions newer
   than the ones known today are used as they are. ARCHS_MAX: a copy supports about 20. */
enum { OLDEST_MAJOR = 12, NEWEST_MAJOR = 19, ARCHS_MAX = 64 };
/* The values of nvrtcResult that get their own messages. */
enum { NVRTC_OUT_OF_MEMORY = 1, NVRTC_COMPILATION = 6, NVRTC_BUILTIN_OPERATION_FAILURE = 7 };

/* A copy of the library. */
struct nvrtc {
    /* In the order of discovery, which breaks ties between equal versions. */
    struct nvrtc *next;
    char path[PATH_MAX];
    const char *found_by;
    dev_t device; /* with inode: identifies the file, whatever its path */
    ino_t inode;
    int64_t file_bytes;
    int version; /* 0: unusable, for the reason in fault */
    char fault[64 + LIBRARY_WHY_BYTES];
    bool has_builtins; /* its libnvrtc-builtins can be loaded */
    /* archs: 90 for sm_90, in ascending order as NVRTC lists them. */
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

/* All functions are required. A copy that lacks one stays in the list with its fault, for the report. */
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the three variables below */
static struct nvrtc *copies, **last_copy = &copies;      /* in the order of discovery */
static char *search_paths;
static bool is_searched;

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

/* An unusable copy stays in the list with the reason, for the report and messages. */
static void fault(struct nvrtc *copy, const char *problem, const char *detail) {
    snprintf(copy->fault, sizeof copy->fault, "%s%s", problem, detail);
    copy->version = 0;
}

/* Loads the builtins library by its full path, so that NVRTC, which loads it by name, finds it whatever the loader's
   folders are. A truncated file is not used, because the process would crash when NVRTC loads it. */
static void load_builtins(struct nvrtc *copy, int major, int minor) {
    char path[PATH_MAX + 64], why[LIBRARY_WHY_BYTES];
    int folder = (int)(strrchr(copy->path, '/') - copy->path);
    snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d", folder, copy->path, major, minor);
    if (library_is_truncated(path, why))
        fault(copy, "its libnvrtc-builtins is unusable: ", why);
    else
        copy->has_builtins = library_open(path, why) || library_open(strrchr(path, '/') + 1, why);
}

/* Sets version and archs, or fault. */
static void load_copy(struct nvrtc *copy) {
    int major = 0, minor = 0, count = 0;
    char why[LIBRARY_WHY_BYTES];
    /* Copies stay loaded, because other threads may be compiling with them. RTLD_LOCAL: copies must not see each
       other's symbols. */
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
        fault(copy, "it does not report its version and architectures", "");
        return;
    }
    /* Encoded like the driver's CUDA version, so that the two can be compared. */
    copy->version = major * 1000 + minor * 10;
    copy->arch_count = count;
    load_builtins(copy, major, minor);
}

/* Adds a file once, even if several names lead to it (links, folders of several settings); the first name is kept. */
static void add_file(const char *path, const char *found_by) {
    struct stat file;
    char real[PATH_MAX];
    if (!realpath(path, real) || stat(real, &file) || !S_ISREG(file.st_mode))
        return;
    for (const struct nvrtc *copy = copies; copy; copy = copy->next)
        if (copy->device == file.st_dev && copy->inode == file.st_ino)
            return;
    /* If memory is exhausted, the copy is ignored. */
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

/* `inside` starts with a slash or is empty. Unusable major versions are looked for too, so that the report can say why
   they are unusable. */
static void add_folder(const char *folder, const char *inside, const char *found_by) {
    char path[PATH_MAX];
    for (int major = NEWEST_MAJOR; major >= OLDEST_MAJOR - 1; major--)
        if (snprintf(path, sizeof path, "%s%s/libnvrtc.so.%d", folder, inside, major) < PATH_MAX)
            add_file(path, found_by);
}

/* NVIDIA's wheels: since CUDA 13 all components share one folder, those of CUDA 12 have one each. */
static void add_wheels(const char *site_packages, const char *found_by) {
    add_folder(site_packages, "/nvidia/cu13/lib", found_by);
    add_folder(site_packages, "/nvidia/cuda_nvrtc/lib", found_by);
}

/* Files and folders separated by colons. */
static void add_list(const char *paths, const char *found_by) {
    char path[PATH_MAX];
    /* Skips the path and the colon after it, if there is one. */
    for (const char *at = paths; *at; at += strcspn(at, ":"), at += *at == ':') {
        int length = (int)strcspn(at, ":");
        /* Longer paths cannot exist. */
        if (!length || snprintf(path, sizeof path, "%.*s", length, at) >= PATH_MAX)
            continue;
        /* Each may be the library itself, its folder, or a site-packages folder. */
        add_file(path, found_by);
        add_folder(path, "", found_by);
        add_wheels(path, found_by);
    }
}

/* Called for each object of the process while the loader holds its lock. Loading here would deadlock, so the paths are
   only recorded. */
static int note_loaded(struct dl_phdr_info *info, size_t bytes, void *paths) {
    (void)bytes;
    const char *name = strrchr(info->dlpi_name, '/');
    if (name && strncmp(name, "/libnvrtc.so", 12) == 0)
        text_add(paths, "%s:", info->dlpi_name);
    return 0;
}

/* A copy that another library such as PyTorch has loaded need not be loaded again. */
static void add_loaded(void) {
    struct text paths;
    text_init(&paths);
    dl_iterate_phdr(note_loaded, &paths);
    add_list(text_string(&paths), "loaded already");
    text_free(&paths);
}

/* Wheels are installed into one site-packages folder: libweft in weft/lib, NVRTC in nvidia. */
static void add_siblings(void) {
    Dl_info self;
    char folder[PATH_MAX], up[PATH_MAX + 8];
    /* The address of any variable of this library identifies its file. */
    if (!dladdr((void *)&copies, &self) || !realpath(self.dli_fname, folder) || !strrchr(folder, '/'))
        return;
    *strrchr(folder, '/') = '\0';
    /* "/../.." and then "/..": site-packages relative to weft/lib, and to a libweft that is one folder below it. */
    for (const char *step = "/../.."; *step; step += 3) {
        snprintf(up, sizeof up, "%s%s", folder, step);
        add_wheels(up, "next to libweft");
    }
}

/* By file name, which the loader looks up; the loader then reports the path. */
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

/* The variables come first, because they are set on purpose. */
static void add_toolkits(void) {
    static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH"};
    glob_t toolkits;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i])) {
            add_folder(getenv(variables[i]), "/lib64", variables[i]);
            add_folder(getenv(variables[i]), "/lib", variables[i]);
        }
    if (glob("/usr/local/cuda*", 0, NULL, &toolkits) == 0)
        for (size_t i = 0; i < toolkits.gl_pathc; i++)
            add_folder(toolkits.gl_pathv[i], "/lib64", "CUDA toolkit");
    globfree(&toolkits);
}

/* The caller holds the lock. */
static void search(void) {
    if (is_searched)
        return;
    /* Set before the search, even if it finds nothing: another search would find nothing new and repeat dozens of
       failed loads. */
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
    /* Known copies stay, because choices point to them. */
    free(search_paths);
    search_paths = copy;
    is_searched = false;
    pthread_mutex_unlock(&lock);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* The newest architecture that a copy supports and that is not newer than `arch`, or 0. */
static int newest_known(const struct nvrtc *copy, int arch) {
    int newest = 0;
    for (int i = 0; i < copy->arch_count; i++)
        if (copy->archs[i] <= arch && copy->archs[i] > newest)
            newest = copy->archs[i];
    return newest;
}

/* SUCCESS if a copy can compile for `arch` (90) with a driver of this version (0: no driver); otherwise a status, with
   the reason in `why`. */
static weftStatus_t judge(char why[512], const struct nvrtc *copy, int arch, int driver) {
    if (!copy->version)
        snprintf(why, 512, "%s", copy->fault);
    else if (copy->version / 1000 < OLDEST_MAJOR)
        snprintf(why, 512, "it is older than 12.0");
    if (!copy->version || copy->version / 1000 < OLDEST_MAJOR)
        return WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING;
    if (newest_known(copy, arch) != arch) {
        snprintf(why, 512, "it supports sm_%d to sm_%d but not sm_%d", copy->archs[0],
                 copy->archs[copy->arch_count - 1], arch);
        return WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH;
    }
    /* Within a major version, cubins of a newer compiler run on older drivers (minor version compatibility). */
    if (driver && copy->version / 1000 > driver / 1000) {
        snprintf(why, 512, "it is newer than the driver, which supports CUDA %d.%d", driver / 1000, driver % 1000 / 10);
        return WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER;
    }
    return WEFT_STATUS_SUCCESS;
}

/* True if `copy` is preferred to `best`, the best of the earlier ones. A copy without its builtins cannot compile, so
   it is the last resort; then the newer version wins, and the first one in case of a tie. */
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

/* For a chip that no copy supports: the driver can translate PTX for an older one, unless the PTX is newer than the
   driver. */
static const struct nvrtc *choose_for_ptx(int arch, int driver) {
    const struct nvrtc *best = NULL;
    for (const struct nvrtc *copy = copies; copy; copy = copy->next) {
        /* Compared including the minor version: unlike for cubins, a driver only translates PTX up to its own version.
           */
        bool serves = copy->version / 1000 >= OLDEST_MAJOR && newest_known(copy, arch) &&
                      newest_known(copy, arch) < arch && (!driver || copy->version <= driver);
        if (serves && is_better(copy, best))
            best = copy;
    }
    return best;
}

/* The command that installs a suitable copy; `driver` is 0 without a driver. */
static const char *how_to_install(int driver) {
    return driver && driver / 1000 < 13
               ? "pip install nvidia-cuda-nvrtc-cu12"
               : "pip install nvidia-cuda-nvrtc (needs driver 580 or newer; nvidia-cuda-nvrtc-cu12 needs 525)";
}

/* Reports why each copy is unusable. The status is that of the newest one. */
static weftStatus_t fail_to_choose(const char *arch_name, int arch, int driver) {
    const char *forced = getenv("WEFT_NVRTC");
    bool is_forced = forced && *forced;
    weftStatus_t status = WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING;
    /* Unusable copies have version 0; all others are newer. */
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
        status = status_fail(
            status,
            "NVRTC: kernels for %s need a copy of 12.0 or newer that supports the chip%s; none of the copies "
            "found is usable: %s. %s%s.",
            arch_name, driver ? " and is no newer than the driver" : "", text_string(&list),
            is_forced ? "Name another in WEFT_NVRTC, unset it, or: " : "Fix: ", how_to_install(driver));
    else if (is_forced)
        status = status_fail(status,
                             "NVRTC: WEFT_NVRTC is '%s', which neither is nor contains a libnvrtc.so.12 or newer. Name "
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

/* "sm_90a" is 90; 0 if the name is invalid. Suffix letters are ignored. */
static int arch_number(const char *arch) { return strncmp(arch, "sm_", 3) == 0 ? (int)strtol(arch + 3, NULL, 10) : 0; }

/* 0 if there is no driver: compiling does not need one, and no copy is too new then. */
static int driver_version(void) {
    const struct driver *driver = driver_find();
    return driver ? driver->version : 0;
}

/* The target is the requested architecture with its suffix: NVRTC checks whether it supports "sm_90a". */
weftStatus_t nvrtc_choose(struct nvrtc_choice *choice, const char *arch) {
    int number = arch_number(arch), driver = driver_version();
    if (number < 10)
        FAIL(WEFT_STATUS_BAD_PARAM, "NVRTC: '%.40s' is not a GPU architecture. Use the form \"sm_90\".", arch);
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
    /* A copy for PTX (`spare`) is only used if no copy can compile for the chip. */
    const struct nvrtc *chosen = choose_copy(number, driver), *spare = chosen ? NULL : choose_for_ptx(number, driver);
    text_add(json, "[");
    for (const struct nvrtc *copy = copies; copy; copy = copy->next) {
        if (copy == chosen)
            snprintf(why, sizeof why, "chosen: the newest that supports the chip and the driver");
        else if (copy == spare)
            snprintf(why, sizeof why, "chosen as a last resort, for PTX: no copy supports sm_%d", number);
        else if (judge(why, copy, number, driver) == WEFT_STATUS_SUCCESS)
            snprintf(why, sizeof why,
                     /* Otherwise choose_copy uses the newest, and the first one in case of a tie. */
                     copy->has_builtins < chosen->has_builtins
                         ? "its libnvrtc-builtins is missing, and another copy is complete"
                     : copy->version < chosen->version ? "a newer copy is used"
                                                       : "the same version was found before");
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

/* An error in a compiler log: "lib/types.cuh(12): error: ...". */
struct log_error {
    const char *file, *words; /* point into the log */
    int file_length, words_length, line;
};

/* Finds the first line of the form "FILE(LINE): ... error ...: WORDS"; false if no line matches. */
static bool find_error(struct log_error *error, const char *log) {
    for (const char *at = log; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        /* strstr searches beyond the line; the result is checked below. */
        const char *end = at + strcspn(at, "\n"), *close = strstr(at, "): "), *open = close;
        const char *word = close ? strstr(close, "error") : NULL;
        if (!word || word > end)
            continue;
        /* Search backwards for the parenthesis before the line number, because file names may contain others. */
        while (open > at && *open != '(')
            open--;
        const char *words = word + strcspn(word, ":\n");
        words += *words == ':';
        words += strspn(words, " ");
        *error = (struct log_error){at, words, (int)(open - at), (int)strcspn(words, "\n"), atoi(open + 1)};
        /* Without a file or a line number it is not of that form, and the whole log is shown. */
        return open > at && error->line > 0;
    }
    return false;
}

/* The text of line `line` (counted from 1), without its indentation. */
static const char *find_line(const char *text, int line, int *length) {
    for (; line > 1 && *text; line--) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    text += strspn(text, " \t");
    *length = (int)strcspn(text, "\n");
    return text;
}

/* The text of the program or of the header with this name in the log; NULL if the file is not one of ours. */
static const char *find_text(const struct program *program, const char *file, int length) {
    if (strncmp(program->name, file, (size_t)length) == 0 && !program->name[length])
        return program->text;
    for (int i = 0; i < program->header_count; i++)
        if (strncmp(program->headers[i].name, file, (size_t)length) == 0 && !program->headers[i].name[length])
            return program->headers[i].text;
    return NULL;
}

/* `log` is never NULL. The failing line is quoted, because users do not have the file. */
static weftStatus_t fail_to_compile(int result, const struct nvrtc_choice *choice, const struct program *program,
                                    const char *log) {
    const struct nvrtc *nvrtc = choice->compiler;
    struct log_error error;
    int major = choice->version / 1000, minor = choice->version % 1000 / 10, length = 0;
    const char *report = "This is a defect of Weft: report it with the program, which WEFT_DUMP_DIR=<folder> saves";
    if (result == NVRTC_OUT_OF_MEMORY)
        FAIL(WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
             "NVRTC %d.%d, %s: out of host memory while '%s' was compiled. Free memory or build fewer plans at once.",
             major, minor, choice->target, program->name);
    if (result == NVRTC_BUILTIN_OPERATION_FAILURE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
             "NVRTC %d.%d: '%s' cannot use its own libnvrtc-builtins.so.%d.%d, which must be in the same folder. "
             "Reinstall NVRTC: %s.",
             major, minor, nvrtc->path, major, minor, how_to_install(choice->version));
    /* Other failures have no line, so NVRTC's message and the log are reported. */
    if (result != NVRTC_COMPILATION || !find_error(&error, log))
        FAIL(WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, "NVRTC %d.%d, %s: '%s' does not compile: %s. %s. Log: %s",
             major, minor, choice->target, program->name, nvrtc->get_error_string(result), report,
             *log ? log : "empty");
    const char *text = find_text(program, error.file, error.file_length);
    const char *line = text ? find_line(text, error.line, &length) : "not available";
    FAIL(WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED,
         "NVRTC %d.%d, %s: '%s' does not compile: %.*s line %d: %.*s: `%.*s`. %s. Log:\n%s", major, minor,
         choice->target, program->name, error.file_length, error.file, error.line, error.words_length, error.words,
         text ? length : 8, line, report, log);
}

/* Reads the log, even if the compilation failed. It also notes if the code is PTX, which is visible nowhere else. */
static weftStatus_t read_log(struct compiled *out, const struct nvrtc_choice *choice, void *program) {
    size_t bytes = 0;
    char note[128] = "";
    if (choice->is_ptx)
        snprintf(note, sizeof note,
                 "weft: NVRTC %d.%d does not support this chip; compiled to PTX of %s for the driver\n",
                 choice->version / 1000, choice->version % 1000 / 10, choice->target);
    /* `bytes` includes the terminating zero. */
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

/* After a failure the image may be set; compiled_free releases it. */
static weftStatus_t read_image(struct compiled *out, const struct nvrtc_choice *choice, void *program) {
    const struct nvrtc *nvrtc = choice->compiler;
    int result =
        choice->is_ptx ? nvrtc->get_ptx_size(program, &out->bytes) : nvrtc->get_cubin_size(program, &out->bytes);
    /* A size of 0 without an error: NVRTC provides no cubin for a virtual architecture. */
    if (!result && out->bytes) {
        out->image = malloc(out->bytes);
        if (!out->image)
            return status_no_memory(out->bytes);
        result = choice->is_ptx ? nvrtc->get_ptx(program, out->image) : nvrtc->get_cubin(program, out->image);
    }
    if (result || !out->bytes)
        FAIL(WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED,
             "NVRTC %d.%d, %s: it compiled a program but produced no code (%s). Reinstall NVRTC: %s.",
             choice->version / 1000, choice->version % 1000 / 10, choice->target, nvrtc->get_error_string(result),
             how_to_install(choice->version));
    out->is_ptx = choice->is_ptx;
    return WEFT_STATUS_SUCCESS;
}

/* `options` has room for option_count + 1. The log is read first, so that failures can report it. */
static weftStatus_t compile(struct compiled *out, const struct nvrtc_choice *choice, const struct program *program,
                            const char **options, void *handle) {
    char target[64];
    snprintf(target, sizeof target, "--gpu-architecture=%s", choice->target);
    /* The caller reserved the first entry. */
    options[0] = target;
    for (int i = 0; i < program->option_count; i++)
        options[i + 1] = program->options[i];
    int result = choice->compiler->compile_program(handle, program->option_count + 1, options);
    TRY(read_log(out, choice, handle));
    if (result)
        return fail_to_compile(result, choice, program, out->log);
    return read_image(out, choice, handle);
}

/* Needs no lock: NVRTC can compile several programs at once, each with its own handle. */
weftStatus_t nvrtc_compile(struct compiled *out, const struct nvrtc_choice *choice, const struct program *program) {
    const struct nvrtc *nvrtc = choice->compiler;
    struct timespec start, end;
    void *handle = NULL;
    memset(out, 0, sizeof *out);
    /* One allocation for header texts, header names and options including the architecture. */
    size_t count = (size_t)program->header_count * 2 + (size_t)program->option_count + 1;
    const char **list = calloc(count, sizeof *list);
    if (!list)
        return status_no_memory(count * sizeof *list);
    for (int i = 0; i < program->header_count; i++) {
        list[i] = program->headers[i].text;
        list[program->header_count + i] = program->headers[i].name;
    }
    /* The compile time is logged; a few hundred milliseconds are usual. */
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
