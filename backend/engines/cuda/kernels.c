/* SPDX-License-Identifier: Apache-2.0 */
/* The files of kernels/, embedded as they stand: the assembler copies each between two labels. A new file is one line in
   each list. */
#include "engines/cuda/kernel.h"

#define EMBED(symbol, path)                                                                                            \
    __asm__(".pushsection .rodata\n.global weft_kernel_" #symbol "\n.hidden weft_kernel_" #symbol                      \
            "\nweft_kernel_" #symbol ":\n.incbin \"" path "\"\n.byte 0\n.popsection\n");                               \
    extern const char weft_kernel_##symbol[];

EMBED(lib_types, "lib/types.cuh")
EMBED(lib_index, "lib/index.cuh")
EMBED(lib_math, "lib/math.cuh")
EMBED(map, "map.cuh")

static const struct program_header files[] = {
    {"lib/types.cuh", weft_kernel_lib_types},
    {"lib/index.cuh", weft_kernel_lib_index},
    {"lib/math.cuh", weft_kernel_lib_math},
    {"map.cuh", weft_kernel_map},
};

const struct program_header *kernel_files(int *count) {
    *count = sizeof files / sizeof *files;
    return files;
}
