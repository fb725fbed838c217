/* SPDX-License-Identifier: Apache-2.0 */
/* Two kinds of records. FOLDER/modules/DIGEST describes a module: its target, the constants of its program, its source
   files, and for each kernel and block the source lines of its instructions:

       target sm_90a
       config BLOCK_M = 128
       file 1 /src/core/index.cuh
       kernel product_sm90
       block 1:45 1:46 2:3

   FOLDER/hits/PROCESS has a line for each test, module and kernel that ran: a bit for each block, four to a digit, the
   first block in the lowest bit of the first digit. */
#define _GNU_SOURCE
#include "coverage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEST_BYTES = 1024, PATH_BYTES = 4096 };

struct loaded {
    struct loaded *next;
    const struct module *module;
    uint64_t digest;
};
static struct loaded *all_loaded;
static char current_test[TEST_BYTES];

static const char *coverage_folder(void) {
    const char *folder = getenv("EMULATOR_COVERAGE");
    return folder && *folder ? folder : NULL;
}

/* FNV-1a. */
static uint64_t digest_text(const char *text) {
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001B3);
    return hash;
}

/* Returns, for each instruction, whether a basic block begins there. A guarded instruction is a block of its own; a
   guarded branch ends its block. */
static bool *find_blocks(const struct kernel *kernel) {
    bool *begins = calloc((size_t)kernel->instruction_count + 2, sizeof *begins);
    if (!begins)
        abort();
    begins[0] = true;
    for (int n = 0; n < kernel->instruction_count; n++) {
        const struct instruction *i = &kernel->instructions[n];
        bool ends = i->is_branch || i->is_end;
        if (i->is_branch)
            begins[i->operands[0].offset] = true;
        if (i->guard >= 0 && !ends)
            begins[n] = true;
        if (i->guard >= 0 || ends)
            begins[n + 1] = true;
    }
    return begins;
}

static void write_blocks(FILE *out, const struct kernel *kernel) {
    bool *begins = find_blocks(kernel);
    fprintf(out, "kernel %s", kernel->name);
    int file = 0, line = 0;
    for (int n = 0; n < kernel->instruction_count; n++) {
        const struct instruction *i = &kernel->instructions[n];
        if (begins[n])
            fprintf(out, "\nblock");
        if (i->source_file && (begins[n] || i->source_file != file || i->source_line != line))
            fprintf(out, " %d:%d", i->source_file, i->source_line);
        file = i->source_file;
        line = i->source_line;
    }
    fprintf(out, "\n");
    free(begins);
}

/* Writes the lines of a text that begin with `start`, with `word` in place of `start`. */
static void write_lines(FILE *out, const char *text, const char *start, const char *word) {
    for (const char *at = text; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, start, strlen(start)) == 0)
            fprintf(out, "%s %.*s\n", word, (int)strcspn(at + strlen(start), "\n"), at + strlen(start));
    }
}

static void make_folder(const char *folder) {
    if (mkdir(folder, 0777) && errno != EEXIST)
        fprintf(stderr, "emulator: EMULATOR_COVERAGE: %s: %s\n", folder, strerror(errno));
}

static void write_module(const char *folder, const struct loaded *loaded, const char *text) {
    char path[PATH_BYTES], unfinished[PATH_BYTES + 32];
    make_folder(folder);
    snprintf(path, sizeof path, "%s/modules", folder);
    make_folder(path);
    snprintf(path, sizeof path, "%s/modules/%016llx", folder, (unsigned long long)loaded->digest);
    if (access(path, F_OK) == 0)
        return;
    snprintf(unfinished, sizeof unfinished, "%s.%d", path, (int)getpid());
    FILE *out = fopen(unfinished, "w");
    if (!out)
        return;
    write_lines(out, text, ".target ", "target");
    write_lines(out, text, "// config ", "config");
    write_lines(out, text, "\t.file\t", "file");
    for (const struct kernel *kernel = loaded->module->kernels; kernel; kernel = kernel->next)
        write_blocks(out, kernel);
    fclose(out);
    rename(unfinished, path);
}

void coverage_add(const struct module *module, const char *text) {
    const char *folder = coverage_folder();
    if (!folder)
        return;
    struct loaded *loaded = malloc(sizeof *loaded);
    if (!loaded)
        abort();
    *loaded = (struct loaded){all_loaded, module, digest_text(text)};
    all_loaded = loaded;
    write_module(folder, loaded, text);
}

/* Writes the blocks of a kernel that ran, if any, and clears the record. */
static void write_hits(FILE *out, const struct loaded *loaded, const struct kernel *kernel) {
    if (!memchr(kernel->is_reached, 1, (size_t)kernel->instruction_count))
        return;
    bool *begins = find_blocks(kernel);
    unsigned digit = 0;
    int bit = 0;
    fprintf(out, "%s\t%016llx\t%s\t", *current_test ? current_test : "-", (unsigned long long)loaded->digest,
            kernel->name);
    for (int n = 0; n < kernel->instruction_count; n++) {
        if (!begins[n])
            continue;
        digit |= (unsigned)kernel->is_reached[n] << bit++;
        if (bit == 4) {
            fprintf(out, "%x", digit);
            digit = 0;
            bit = 0;
        }
    }
    fprintf(out, bit ? "%x\n" : "\n", digit);
    memset(kernel->is_reached, 0, (size_t)kernel->instruction_count);
    free(begins);
}

/* Writes the executed blocks of a module, or of all modules if it is NULL. */
static void write_all_hits(const struct module *module) {
    const char *folder = coverage_folder();
    char path[PATH_BYTES];
    if (!folder || !all_loaded)
        return;
    snprintf(path, sizeof path, "%s/hits", folder);
    make_folder(path);
    snprintf(path, sizeof path, "%s/hits/%d", folder, (int)getpid());
    FILE *out = fopen(path, "a");
    if (!out)
        return;
    for (const struct loaded *loaded = all_loaded; loaded; loaded = loaded->next)
        if (!module || loaded->module == module)
            for (const struct kernel *kernel = loaded->module->kernels; kernel; kernel = kernel->next)
                write_hits(out, loaded, kernel);
    fclose(out);
}

void coverage_follow_test(void) {
    char test[TEST_BYTES];
    const char *name = coverage_folder() ? getenv("PYTEST_CURRENT_TEST") : NULL;
    if (!all_loaded)
        return;
    snprintf(test, sizeof test, "%s", name ? name : "");
    char *phase = strrchr(test, ' '); /* "test_norm.py::test_layer[f16] (call)" */
    if (phase && phase[1] == '(')
        *phase = '\0';
    if (strcmp(test, current_test) == 0)
        return;
    write_all_hits(NULL);
    snprintf(current_test, sizeof current_test, "%s", test);
}

void coverage_remove(const struct module *module) {
    write_all_hits(module);
    for (struct loaded **at = &all_loaded; *at; at = &(*at)->next)
        if ((*at)->module == module) {
            struct loaded *loaded = *at;
            *at = loaded->next;
            free(loaded);
            return;
        }
}

__attribute__((destructor)) static void write_at_exit(void) { write_all_hits(NULL); }
