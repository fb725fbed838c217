/* SPDX-License-Identifier: Apache-2.0 */
/* Run-time state that the parts of a direct convolution share. */
#ifndef WEFT_ENGINES_CPU_DIRECT_TASK_H
#define WEFT_ENGINES_CPU_DIRECT_TASK_H

#include "base/number.h"
#include "engines/cpu/product/direct.h"
#include "engines/cpu/product/direct_kernel.h"
#include "engines/cpu/product/panels.h"

#include <stdatomic.h>

enum {
    IMAGE_DEPTH = 1152, /* maximum depth of a part: 144 KiB of a panel */
    STRIP = 96,         /* rows whose pointers are set at a time; a multiple of all kernels' rows */
    LINE = 16,          /* alignment of buffers in floats */
    POINTER_FLOATS = 2  /* maximum size of a pointer in floats */
};

/* Zeros that rows and taps outside an image see. No part is deeper, and no task of single channels wider. */
extern const float direct_zeros[IMAGE_DEPTH];

/* State of one execution, on the caller's stack. direct: with the memory of this execution. */
struct job {
    const struct direct *direct;
    const struct program *program;
    void *const *values;
    float *buffers, *parts;
    float *prepacked; /* the filter's prepacked panels, which are read instead of packing; NULL: tasks pack */
    /* The result's memory, if the sums are stored without changes and the traversal has rows with pitch `memory_ld`;
       otherwise NULL. */
    float *memory;
    int64_t memory_ld;
    _Atomic int64_t next; /* next task */
};

/* Rows of memory to prefetch, per_kernel lines at a time between kernels. */
struct ahead {
    const char *row;
    int64_t row_bytes, rows, lines, line, per_kernel;
    bool is_written;
};

/* State of a thread. width: columns of all panels, which is the row pitch of the sums. */
struct task {
    const struct job *job;
    int64_t group, row, rows, channel, channels, columns, width;
    float *panels, *sums, *transposed;
    const float **pointers;
    struct ahead *ahead; /* [2]: the next part's filter, the strip's result */
};

/* Columns for some channels, in whole vectors. */
int64_t direct_width(const struct direct *direct, int64_t channels);

/* Number of tasks of a tiling, without splits of the depth. */
int64_t direct_tasks(const struct direct *direct, const struct direct_tiling *tiling);

/* Floats of a thread's buffers, and of a filter gradient's partial sums: [parts, taps, columns] for single channels,
   otherwise [splits, tasks, a task's sums]. */
static inline int64_t direct_thread_floats(const struct direct_tiling *tiling) {
    return tiling->panels + tiling->sums + tiling->transposed + round_up(tiling->pointers * POINTER_FLOATS, LINE);
}
int64_t direct_part_floats(const struct direct *direct);

/* Points task->pointers [segments, STRIP] to what each row sees in some range of the depth. Rows past the last one, up
   to a whole kernel's, repeat it; taps outside an image see zeros. */
void direct_set_pointers(const struct task *task, int64_t row, int64_t rows, const struct depths *depths);

/* The shape of the panel that starts at a column of a task. If columns are read in place, all of them are channels of
   one tap. */
const struct direct_shape *direct_panel(const struct task *task, int64_t column);

/* Fills task->panels with pointers [panels, segments, depth] to each panel's columns at each position. */
void direct_set_column_pointers(const struct task *task, const struct depths *depths);

/* True if a filter gradient of single channels can run along lines; and the floats of a thread's planes. */
bool direct_can_sum_lines(const struct patches *x, const struct patches *dy);
int64_t direct_line_floats(const struct patches *x);

/* Thread main loop: sums channels until none is left. */
void direct_sum_lines(void *job, int64_t thread);

/* Computes a filter gradient of single channels. */
void direct_run_sums(struct job *job);

/* Thread main loop: computes planes of single channels until none is left. */
void direct_compute_planes(void *job, int64_t thread);

#endif
