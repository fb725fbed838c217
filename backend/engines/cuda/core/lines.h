/* SPDX-License-Identifier: Apache-2.0 */
/* Code that finds the lines of tensors (engines/lines.h) in a kernel. */
#ifndef WEFT_ENGINES_CUDA_LINES_H
#define WEFT_ENGINES_CUDA_LINES_H

#include "engines/cuda/core/kernel.h"
#include "engines/lines.h"

/* Rejects more lines than divisors can count. */
weftStatus_t lines_check(const struct lines *lines, const struct descriptor *op);

/* Emits the divisors that split the number of a line into coordinates. Once per kernel. */
void emit_lines(struct kernel_source *source, const struct lines *lines);

/* Emits NAME_t, a pointer NAME, the stride NAME_step along the axis, and NAME_line(p, line): a line's offset. For NULL,
   only the type. */
void emit_lines_of(struct kernel_source *source, const struct lines *lines, int k, const struct tensor *tensor,
                   const char *name);

/* The largest power of two, at most `most`, such that so many adjacent elements of a line are one aligned access, or
   several of 16 bytes, wherever they begin at a multiple of it. 1 for strided lines. */
int64_t lines_run(const struct lines *lines, int k, const struct tensor *tensor, int64_t most);

#endif
