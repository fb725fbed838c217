/* SPDX-License-Identifier: Apache-2.0 */
/* Interface of the attention family: the analysed operation, tiles that fit a device, and emission of the source that
   all kernels share. analyse.c analyses, attention.c predicts times, forward.c and backward.c build the kernels. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_H
#define WEFT_ENGINES_CUDA_ATTENTION_H

#include "engines/cuda/core/kernel.h"
#include "graph/ops/attention_indices.h"

/* Arithmetic of the matmuls. The instances in analyse.c are constant. `bytes`: per staged element; `sum_bytes`: per
   accumulator element. */
struct attention_arithmetic {
    weftDataType_t staged; /* type of tiles in shared memory */
    const char *staged_name, *sum_name;
    int bytes, sum_bytes;
    bool is_mma;
    int max_columns; /* columns of results that a block can accumulate in registers */
    const char *doc;
};

struct cuda_attention {
    const struct region *region;
    const struct graph *graph;
    const struct device *device;
    const struct attention *a;
    const struct sdpa_fwd_op *forward;  /* exactly one of `forward` and */
    const struct sdpa_bwd_op *backward; /* `backward` is set */
    const struct attention_arithmetic *arithmetic;
    bool has_k16, has_async; /* sm_80: m16n8k16 MMAs, and cp.async */
    int64_t batches, heads, key_heads, value_heads, queries, keys, depth, value_depth;
    int64_t lines;   /* batches * heads * queries */
    int64_t rows_at; /* workspace offset, in bytes, of the portable kernels' per-query statistics */
    const struct attention_widened *widened; /* operands that Hopper's kernels read from the workspace, or NULL */
};

/* A warp has 16 m_tiles rows and iterates over `columns` of the other side at a time. stages: streamed tiles in shared
   memory, including the one being multiplied. */
struct attention_tile {
    int warps, m_tiles, columns, stages;
    bool in_registers; /* resident rows stay in registers */
};

/* Analyses a region of one sdpa_fwd or sdpa_bwd whose tensors kernels can access. */
weftStatus_t attention_analyse(struct cuda_attention *c, const struct region *region, const struct device *device);

/* True if scores need more registers than the matmul itself: a bias, a modifier, dropout, double accumulators, a second
   part of P, or row or block scales in the backward pass. */
bool attention_is_rich(const struct cuda_attention *c, int parts);

/* Fraction of the scores that are in tiles which a block processes; bounds hide the others. */
double attention_visible_fraction(const struct cuda_attention *c);
/* Granularity of an operand's scales; kernels use these values. */
enum { ATTENTION_SCALES_NONE, ATTENTION_SCALES_HEAD, ATTENTION_SCALES_ROWS, ATTENTION_SCALES_BLOCKS };
int attention_query_scales(const struct cuda_attention *c, bool is_packed);
int attention_key_scales(const struct tensor *scales, const struct tensor *table);
/* Collects the amax outputs that are requested; returns their number. */
enum { ATTENTION_AMAX_MAX = 4 };
int attention_amax_outputs(const struct cuda_attention *c, const struct tensor *outputs[ATTENTION_AMAX_MAX]);
/* True if an operand or a result has a scale, or an amax is requested. */
bool attention_is_scaled(const struct cuda_attention *c);
/* Seconds that portable kernels need for that number of operations. */
double attention_predict_flops(const struct cuda_attention *c, double flops);

/* True if an operand has ragged offsets. */
bool attention_is_ragged(const struct cuda_attention *c);
/* The same for operands with rows of queries or keys: page tables do not count. */
bool attention_has_ragged_rows(const struct cuda_attention *c);

/* Columns of results that a block can accumulate in registers. */
int attention_max_columns(const struct cuda_attention *c, int parts);

/* True if an output is present and used. */
bool attention_wants(const struct cuda_attention *c, const struct tensor *output);

/* A depth in shared memory: padded to a multiple of 16, and of the chunks in which its columns are accumulated or, if
   the whole does not fit, loaded. */
struct attention_depth {
    int64_t padded, chunk, chunks;
};
struct attention_depth attention_depth_of(int64_t depth, int max_chunk);

/* Fails with a reason, for families that leave a case to the portable one. */
weftStatus_t attention_decline(const struct cuda_attention *c, const char *reason);

/* Fails because the device has less shared memory than the smallest tile requires. */
weftStatus_t attention_decline_shared_memory(const struct cuda_attention *c, int64_t shared_bytes);

/* Sets a kernel's grid, or fails if the number of blocks exceeds the limit. */
weftStatus_t attention_grid(struct cuda_kernel *kernel, const struct cuda_attention *c, int64_t blocks, int warps);

/* ---- emit.c ---- */

/* Number of adjacent elements of a [B, H, S, D] operand that one access may load; 1 if they are not contiguous. */
int attention_run(const struct tensor *tensor);
/* Emits `using NAME_t`, the pointer, and strides NAME_batch, .. with the suffixes in `axes` (NULL: batch, head, row,
   column). */
void attention_emit_tensor(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                           const char *name, const char *const axes[4]);
/* Also emits constexpr int NAME_RUN. */
void attention_emit_operand(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                            const char *name, const char *run_name);
/* Emits a container's page size NAME_PAGE, and its page table; 0: NAME is not paged. */
void attention_emit_pages(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *table,
                          const struct tensor *container, const char *name, const char *page_name);
/* Emits the arithmetic, sizes, and what scores depend on. */
void attention_emit_scores(struct kernel_source *source, const struct cuda_attention *c);
/* Emits queries and keys in use, per batch entry or as cumulative sums. */
void attention_emit_lengths(struct kernel_source *source, const struct cuda_attention *c);
/* Emits which tiles of scores are active. */
void attention_emit_block_mask(struct kernel_source *source, const struct cuda_attention *c);
void attention_emit_tile(struct kernel_source *source, const struct attention_tile *tile, const char *columns_name,
                         int64_t shared_bytes);
/* Emits the bits of a double as an argument. */
void attention_emit_real(struct kernel_source *source, double number, const char *name);
/* Emits seed, offset, and keep probability. */
void attention_emit_dropout(struct kernel_source *source, const struct cuda_attention *c);
/* Emits the tensor if it is requested, and a constant: whether it is. */
void attention_emit_wanted(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                           const char *name, const char *flag);

/* ---- modifier.c: score modifiers as functions of (arguments, batch, head, query, key, scaled product) ---- */

/* True if the modifier reads the tensor. */
bool attention_modifies_with(const struct cuda_attention *c, const struct tensor *tensor);
/* Checks that kernels can evaluate the modifier. */
weftStatus_t attention_check_modifier(const struct cuda_attention *c);
/* Emits HAS_MODIFIER, its operands, and modified(), which returns the score. is_rounded: everything computed from
   scores has 16 bits or fewer. */
void attention_emit_modifier(struct kernel_source *source, const struct cuda_attention *c, bool is_rounded);
/* After it: emits modified_between(), factor_before() and factor_after(), whose composition is modified(). */
void attention_emit_modifier_factors(struct kernel_source *source, const struct cuda_attention *c);
/* True if there is only a tanh between the factors. */
bool attention_is_soft_cap(const struct cuda_attention *c);
void attention_emit_soft_cap(struct kernel_source *source, const struct cuda_attention *c, bool is_rounded);
void attention_emit_between_gradient(struct kernel_source *source, const struct cuda_attention *c);
/* Emits modified_gradient(.., gradient): the gradient of the scaled product from that of the score. */
void attention_emit_modifier_gradient(struct kernel_source *source, const struct cuda_attention *c);
/* Emits operand_gradient(.., gradient): the gradient of the operand that belongs to gradient number `i`. */
void attention_emit_operand_gradient(struct kernel_source *source, const struct cuda_attention *c, int64_t i);

/* ---- forward.c, backward.c, decode.c ---- */

/* Emits scales of operands and results, and amax outputs. is_packed: a tile has rows of several heads. */
void attention_emit_scales(struct kernel_source *source, const struct cuda_attention *c, bool is_packed);
/* Emits a tensor of one element, and a constant: whether it is present. */
void attention_emit_scale(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *scale,
                          const char *name, const char *flag);
/* Emits NAME_scales(arguments, batch, head) for element_scales.cuh: the scales of an operand, or none if NULL. */
void attention_emit_element_scales(struct kernel_source *source, const struct cuda_attention *c,
                                   const struct tensor *scales, const struct tensor *operand, const char *name);
/* Builds the kernel that clears the amax outputs, if any are requested. */
weftStatus_t attention_build_amax_clear(const struct cuda_attention *c, struct cuda_step *state, struct arena *arena);
/* Emits the outputs of a row in the forward pass. */
void attention_emit_ends(struct kernel_source *source, const struct cuda_attention *c);
/* Emits the location of the partial sums of key splits; returns the workspace size in bytes. */
int64_t attention_emit_splits(struct kernel_source *source, const struct cuda_attention *c, int64_t splits);
/* Builds the kernel that merges the splits. */
weftStatus_t attention_build_merge(const struct cuda_attention *c, int64_t splits, struct cuda_kernel *kernel,
                                   struct arena *arena);

weftStatus_t attention_forward_accepts(const struct cuda_attention *c);
weftStatus_t attention_forward_build(struct step *step, const struct cuda_attention *c, struct cuda_step *state,
                                     struct arena *arena);
weftStatus_t attention_backward_accepts(const struct cuda_attention *c);
weftStatus_t attention_backward_build(struct step *step, const struct cuda_attention *c, struct cuda_step *state,
                                      struct arena *arena);

/* These compute only the gradients of the bias and of the score modifier's operands: whether any is requested, their
   predicted seconds, and their kernels, whose workspace starts at `workspace_at`. */
bool attention_backward_wants_biases(const struct cuda_attention *c);
double attention_backward_predict_biases(const struct cuda_attention *c);
weftStatus_t attention_backward_build_biases(struct step *step, const struct cuda_attention *c, int64_t workspace_at,
                                             struct cuda_step *state, struct arena *arena);

#endif
