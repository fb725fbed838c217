/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the CPU: what forward and backward are planned as, and their runs. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_H
#define WEFT_ENGINES_CPU_ATTENTION_H

#include "engines/cpu/attention/scores.h"

/* What a step keeps, in the plan's arena. */
struct attention_plan {
    struct attention_sizes sizes;
    const struct small_kernel *kernel;
    const struct program *modifier; /* with its walk; NULL: none */
    const struct rows_columns *walk;
    int threads;
    bool is_few;             /* so few queries read the keys that these are not worth a copy */
    bool is_packed;          /* forward: its products are of bf16 */
    int64_t panels;          /* of a task at most: it reads keys and values once for all of them */
    int64_t groups;          /* forward: of a task, side by side; 1 but where queries are few: each is a panel then */
    int64_t blocks;          /* tasks of a group, side by side along its columns */
    int64_t modifier_floats; /* backward: of a thread */
    int64_t unit;            /* backward: groups of a task, which has all that reads its heads of keys and of values */
    int64_t splits, split_keys;         /* parts that keys are cut into, each a task of its own; keys of one */
    int64_t thread_bytes, shared_bytes; /* of workspace */
};

/* Of one execution, on the stack of `run`. */
struct attention_run {
    const struct attention_plan *plan;
    struct scores scores;
    char *workspace; /* aligned: what is shared, then what each thread has */
};

/* Whether its products are of bf16, on AMX's tiles. */
bool attention_is_packed(const struct attention_sizes *s, const struct sdpa_fwd_op *op);

/* Cuts the work into tasks and counts workspace; sizes, kernel and threads are there. */
void attention_plan_forward(struct attention_plan *plan, const struct sdpa_fwd_op *op);
void attention_plan_backward(struct attention_plan *plan, const struct sdpa_bwd_op *op);
void attention_forward(const struct attention_run *run, const struct sdpa_fwd_op *op);
void attention_backward(const struct attention_run *run, const struct sdpa_bwd_op *op);

enum { LINE = 64 }; /* alignment of buffers, bytes: the widest vector */

/* Arrays of floats in a block of memory, one after the other; without a block they are only counted. */
struct buffers {
    char *block;
    int64_t bytes;
};
static inline void *buffers_take(struct buffers *buffers, int64_t bytes) {
    void *found = buffers->block ? buffers->block + buffers->bytes : NULL;
    buffers->bytes += (bytes + LINE - 1) / LINE * LINE;
    return found;
}
static inline float *buffers_floats(struct buffers *buffers, int64_t count) {
    return buffers_take(buffers, count * (int64_t)sizeof(float));
}

/* Floats from row to row of a buffer whose rows are `count` numbers, read in whole blocks of a kernel: not a power of
   two, as rows would then share sets of the cache. */
static inline int64_t padded_row(int64_t count) {
    int64_t whole = (count + PANEL - 1) / PANEL * PANEL;
    return whole % 256 == 0 ? whole + 16 : whole;
}

/* Rows that a kernel computes where there are `count`. */
static inline int64_t padded_rows(int64_t count) { return count + SMALL_ROWS; }

#endif
