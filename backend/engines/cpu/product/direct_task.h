/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a direct convolution share while one runs. */
#ifndef WEFT_ENGINES_CPU_DIRECT_TASK_H
#define WEFT_ENGINES_CPU_DIRECT_TASK_H

#include "engines/cpu/product/direct.h"
#include "engines/cpu/product/direct_kernel.h"
#include "engines/cpu/product/panels.h"

#include <stdatomic.h>

enum {
    IMAGE_DEPTH = 1152, /* of a part at most: 144 KiB of a panel */
    STRIP = 96,         /* rows whose pointers are made at a time; a multiple of all kernels' rows */
    LINE = 16           /* alignment of buffers, floats */
};

/* What rows and taps outside of an image see; no part is deeper, and no task of single channels wider. */
extern const float direct_zeros[IMAGE_DEPTH];

/* Of one execution, on the caller's stack. direct: with the memory of this execution. */
struct job {
    const struct direct *direct;
    const struct program *program;
    void *const *values;
    float *buffers, *parts;
    float *kept; /* the filter's panels, which are read alone; NULL: tasks pack */
    /* The result's memory, where nothing is done to sums and the walk is rows `memory_ld` apart; else NULL. */
    float *memory;
    int64_t memory_ld;
    _Atomic int64_t next; /* task */
};

/* Rows of memory that are wanted soon, and are fetched a few lines at a time between kernels, as `per_kernel` says. */
struct ahead {
    const char *row;
    int64_t row_bytes, rows, lines, line, per_kernel;
    bool is_written;
};

/* What a thread works on. width: columns of the panels together, from row to row of the sums. */
struct task {
    const struct job *job;
    int64_t group, row, rows, channel, channels, columns, width;
    float *panels, *sums, *turned;
    const float **seen;
    struct ahead *ahead; /* [2]: the next part's filter, the strip's result */
};

/* Columns of some channels, in whole vectors. */
int64_t direct_width(const struct direct *direct, int64_t channels);

/* Tasks of a tiling, but for splits of the depth. */
int64_t direct_tasks(const struct direct *direct, const struct direct_tiling *tiling);

/* Floats of a thread's buffers, and of the parts' sums of a filter's gradient: of single channels [parts, taps,
   columns], else [splits, tasks, a task's sums]. */
int64_t direct_thread_floats(const struct direct_tiling *tiling);
int64_t direct_part_floats(const struct direct *direct);

/* Points task->seen [segments, STRIP] to what each row sees in some depths; rows beyond the last one, up to a whole
   kernel's, see what it sees, and taps outside of an image zeros. */
void direct_set_pointers(const struct task *task, int64_t row, int64_t rows, const struct depths *depths);

/* The shape of the panel that begins at a column of a task. Of columns that are read in place, all are channels of one
   tap. */
const struct direct_shape *direct_panel(const struct task *task, int64_t column);

/* Fills task->panels with pointers [panels, segments, depths] to what each panel's columns are at each position. */
void direct_set_column_pointers(const struct task *task, const struct depths *depths);

/* Whether a filter's gradient of single channels can go along lines, and the floats of a thread's planes. */
bool direct_has_planes(const struct patches *x, const struct patches *dy);
int64_t direct_plane_floats(const struct patches *x);

/* Sums of channels that nobody has taken yet, on one thread. */
void direct_sum_planes(void *job, int64_t thread);

/* A filter's gradient of single channels. */
void direct_run_sums(struct job *job);

/* Planes of single channels that nobody has made yet, on one thread. */
void direct_make_planes(void *job, int64_t thread);

#endif
