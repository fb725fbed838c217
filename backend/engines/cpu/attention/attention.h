/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the CPU: the plans of forward and backward, and the functions that run them. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_H
#define WEFT_ENGINES_CPU_ATTENTION_H

#include "engines/cpu/attention/scores.h"

/* State of a step, in the plan's arena. */
struct attention_plan {
    struct attention_sizes sizes;
    const struct small_kernel *kernel;
    const struct program *modifier; /* and its traversal, or NULL */
    const struct rows_columns *walk;
    int threads;
    bool has_few_queries; /* so few queries read the keys that copying these does not pay off */
    bool is_packed;       /* forward: its products are bf16 */
    int64_t panels;       /* maximum panels of a task, which reads keys and values once for all of them */
    /* forward: adjacent groups of a task; 1 unless there are few queries: then each group is a panel */
    int64_t groups;
    int64_t blocks;          /* tasks of a group, along its columns */
    int64_t modifier_floats; /* backward: per thread */
    /* backward: groups per task, which contains all query heads that read its key and value heads */
    int64_t unit;
    int64_t splits, split_keys;         /* parts into which keys are split, each a separate task; keys per part */
    int64_t thread_bytes, shared_bytes; /* bytes of workspace */
};

/* State of one execution, on the stack of `run`. */
struct attention_run {
    const struct attention_plan *plan;
    struct scores scores;
    char *workspace; /* aligned: first the shared part, then the threads' parts */
};

/* True if the products are bf16 on AMX. */
bool attention_is_packed(const struct attention_sizes *s, const struct sdpa_fwd_op *op);

/* Divides the work into tasks and computes the workspace. Requires that sizes, kernel and threads are set. */
void attention_plan_forward(struct attention_plan *plan, const struct sdpa_fwd_op *op);
void attention_plan_backward(struct attention_plan *plan, const struct sdpa_bwd_op *op);
void attention_forward(const struct attention_run *run, const struct sdpa_fwd_op *op);
void attention_backward(const struct attention_run *run, const struct sdpa_bwd_op *op);

enum { LINE = 64 }; /* alignment of buffers in bytes: the widest vector */

/* Allocates arrays of floats consecutively from a block of memory; without a block, only counts bytes. */
struct buffers {
    char *block;
    int64_t bytes;
};
static inline void *buffers_alloc(struct buffers *buffers, int64_t bytes) {
    void *memory = buffers->block ? buffers->block + buffers->bytes : NULL;
    buffers->bytes += (bytes + LINE - 1) / LINE * LINE;
    return memory;
}
static inline float *buffers_floats(struct buffers *buffers, int64_t count) {
    return buffers_alloc(buffers, count * (int64_t)sizeof(float));
}

/* Row pitch in floats of a buffer with rows of `count` numbers, which kernels read in whole blocks. Never a power of
   two, because rows would then map to the same cache sets. */
static inline int64_t padded_row(int64_t count) {
    int64_t padded = (count + PANEL - 1) / PANEL * PANEL;
    return padded % 256 == 0 ? padded + 16 : padded;
}

/* Number of rows that a kernel computes if there are `count`. */
static inline int64_t padded_rows(int64_t count) { return count + SMALL_ROWS; }

#endif
