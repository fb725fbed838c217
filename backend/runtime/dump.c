/* SPDX-License-Identifier: Apache-2.0 */
/* Writes programs and their code to a folder for people to read. They are never read back, and a failure to write does
   not fail a plan. */
#define _GNU_SOURCE
#include "runtime/dump.h"
#include "base/environment.h"
#include "base/hash.h"
#include "base/trace.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Creates the folders of a path, except its last component. mkdir also fails if the folder exists; if it cannot be
   created, fopen fails later. */
static void make_parents(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
}

/* Writes a file; the header name may contain folders. True if all bytes were written. */
static bool write_file(const char *folder, const char *name, const void *data, size_t bytes) {
    char path[PATH_MAX];
    if (name[0] == '/' || strstr(name, "..") || snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return true; /* such a name would leave the folder; headers of the library have no such names */
    make_parents(path);
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    /* fwrite of 0 bytes returns 0, which is no failure here. */
    bool is_complete = !bytes || fwrite(data, bytes, 1, file) == 1;
    return fclose(file) == 0 && is_complete;
}

/* Writes what is needed to compile the program by hand: version, target, options in order. */
static bool write_options(const char *folder, const struct program *program, const struct nvrtc_choice *choice) {
    struct text text;
    text_init(&text);
    text_add(&text, "NVRTC %d.%d\n--gpu-architecture=%s\n", choice->version / 1000, choice->version % 1000 / 10,
             choice->target);
    for (int i = 0; i < program->option_count; i++)
        text_add(&text, "%s\n", program->options[i]);
    bool is_complete = write_file(folder, "options.txt", text_string(&text), text.length);
    text_free(&text);
    return is_complete;
}

/* The folder's name consists of the program and the first 12 digits of its key, so that variants of a kernel are listed
   next to each other. */
void dump_program(const struct program *program, const struct nvrtc_choice *choice, const uint8_t key[32],
                  const struct compiled *compiled) {
    /* Set after the first warning on stderr. The variable is read on each call, because a debugger may set it at any
       time. */
    static atomic_flag is_reported = ATOMIC_FLAG_INIT;
    const char *root = getenv("WEFT_DUMP_DIR"), *log = compiled->log ? compiled->log : "";
    char hex[65], folder[PATH_MAX];
    if (!root || !*root)
        return;
    sha256_hex(hex, key);
    if (snprintf(folder, sizeof folder, "%s/%s-%.12s", root, program->name, hex) >= (int)sizeof folder)
        return;
    bool is_complete = write_file(folder, program->name, program->text, strlen(program->text)) &&
                       write_options(folder, program, choice) && write_file(folder, "log.txt", log, strlen(log));
    /* Headers are written under the names by which the program includes them, so that the folder compiles as it is. */
    for (int i = 0; is_complete && i < program->header_count; i++)
        is_complete =
            write_file(folder, program->headers[i].name, program->headers[i].text, strlen(program->headers[i].text));
    if (is_complete && compiled->image)
        is_complete =
            write_file(folder, compiled->is_ptx ? "image.ptx" : "image.cubin", compiled->image, compiled->bytes);
    /* stderr gets one warning per process, the log gets all of them. */
    if (!is_complete && !atomic_flag_test_and_set(&is_reported))
        environment_warn("WEFT_DUMP_DIR", root, "where files cannot be written. Name a writable folder.");
    if (!is_complete)
        trace(WEFT_SEV_WARNING, "WEFT_DUMP_DIR: '%s' cannot be written (%s). Name a writable folder.", folder,
              strerror(errno));
}
