/* SPDX-License-Identifier: Apache-2.0 */
/* The device files (.cuh) of all families, embedded without their comments: the assembler copies each between two
   labels. cmake/embed.cmake finds them and lists them in device_files.h; a new file needs no registration. Files
   include each other by their paths from engines/cuda. */
#include <device_files.h> /* generated */
#include "engines/cuda/core/kernel.h"

/* .incbin copies the bytes unchanged, and a zero after them terminates the text. The symbols are hidden, so that the
   library does not export them. The assembler's -I is the folder that cmake/embed.cmake writes; it also searches
   backend/, where shared headers have the same path but still their comments. */
#define EMBED(symbol, name)                                                                                            \
    __asm__(".pushsection .rodata\n.global weft_kernel_" #symbol "\n.hidden weft_kernel_" #symbol                      \
            "\nweft_kernel_" #symbol ":\n.incbin \"stripped/" name "\"\n.byte 0\n.popsection\n");                      \
    extern const char weft_kernel_##symbol[];
DEVICE_FILES(EMBED)

/* Hashes and JSON use this order, which does not depend on the order of includes. */
#define ROW(symbol, name) {name, weft_kernel_##symbol},
static const struct program_header files[] = {DEVICE_FILES(ROW)};

_Static_assert(sizeof files / sizeof *files <= DEVICE_FILES_MAX, "sets of files have a bit for each");

const struct program_header *device_files(int *count) {
    *count = sizeof files / sizeof *files;
    return files;
}
