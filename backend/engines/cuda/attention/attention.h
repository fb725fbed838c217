/* SPDX-License-Identifier: Apache-2.0 */
/* The attention family's parts: what an operation is for the kernels, tiles that fit a device, and the printing of what
   all kernels share. attention.c decides; forward.c and backward.c make the kernels. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_H
#define WEFT_ENGINES_CUDA_ATTENTION_H

#include "engines/cuda/core/kernel.h"
#include "graph/ops/attention_indices.h"

/* How products are made and summed. Constant rows in attention.c. `bytes` of a staged element, `sum_bytes` of an
   element of a sum. */
struct attention_arithmetic {
    weftDataType_t staged; /* type of tiles in shared memory */
    const char *staged_name, *sum_name;
    int bytes, sum_bytes;
    bool is_mma;
    int most_columns; /* of results that one block sums in registers */
    const char *doc;
};

struct cuda_attention {
    const struct region *region;
    const struct graph *graph;
    const struct device *device;
    const struct attention *a;
    const struct sdpa_fwd_op *forward;  /* one of these */
    const struct sdpa_bwd_op *backward; /* is NULL */
    const struct attention_arithmetic *arithmetic;
    bool has_k16, has_async; /* of sm_80: products of 16 halves, copies that pass by the registers */
    int64_t batches, heads, key_heads, value_heads, queries, keys, depth, value_depth;
    int64_t lines;   /* batches * heads * queries */
    int64_t rows_at; /* where the workspace has the portable kernels' statistics of queries, in bytes */
    const struct attention_widened *widened; /* operands that Hopper's kernels read from the workspace; NULL: none */
};

/* 16 m_tiles rows per warp against `columns` of the other side at a time. stages: tiles of the passing side in shared
   memory at a time, one of which is multiplied. */
struct attention_tile {
    int warps, m_tiles, columns, stages;
    bool is_held; /* own rows stay in registers */
};

/* A region of one sdpa_fwd or sdpa_bwd whose tensors kernels can store. */
weftStatus_t attention_analyse(struct cuda_attention *c, const struct region *region, const struct device *device);

/* Whether scores take more registers than the product alone: a bias, a modifier, dropout, double sums, a second part of
   the weights, scales of rows or blocks backward. */
bool attention_is_rich(const struct cuda_attention *c, int parts);

/* Of all scores, those in tiles that a block looks at: bounds hide the others. */
double attention_seen_share(const struct cuda_attention *c);
/* How many scales an operand has, as the kernels' text counts them. */
enum { ATTENTION_SCALES_NONE, ATTENTION_SCALES_HEAD, ATTENTION_SCALES_ROWS, ATTENTION_SCALES_BLOCKS };
int attention_query_scales(const struct cuda_attention *c, bool is_packed);
int attention_key_scales(const struct tensor *scales, const struct tensor *table);
/* The largest numbers that somebody wants; gives their count. */
enum { ATTENTION_AMAX_MAX = 4 };
int attention_amax_outputs(const struct cuda_attention *c, const struct tensor *outputs[ATTENTION_AMAX_MAX]);
/* Whether an operand or a result is multiplied by a scale, or a largest number is wanted. */
bool attention_is_scaled(const struct cuda_attention *c);
/* The seconds of so many operations in portable kernels. */
double attention_predict_flops(const struct cuda_attention *c, double flops);

/* Whether an operand has ragged offsets. */
bool attention_is_ragged(const struct cuda_attention *c);
/* The same of operands with rows of queries or keys: page tables do not count. */
bool attention_has_ragged_rows(const struct cuda_attention *c);

/* How many columns of results a block can sum in registers. */
int attention_most_columns(const struct cuda_attention *c, int parts);

/* Whether somebody wants an output. */
bool attention_wants(const struct cuda_attention *c, const struct tensor *output);

/* A depth in shared memory: a multiple of 16, and of the chunks that its columns are summed in, or, where the whole
   does not fit, come in. */
struct attention_depth {
    int64_t padded, chunk, chunks;
};
struct attention_depth attention_depth_of(int64_t depth, int most);

/* What no tile can change: a device with less shared memory than the smallest one takes. */
weftStatus_t attention_refuse(const struct cuda_attention *c, int64_t shared_bytes);

/* A kernel's blocks, or an error where they are more than a grid holds. */
weftStatus_t attention_grid(struct cuda_kernel *kernel, const struct cuda_attention *c, int64_t blocks, int warps);

/* ---- print.c ---- */

/* Neighbours that one access may take of a [B, H, S, D] operand; 1: also where they do not lie side by side. */
int attention_run(const struct tensor *tensor);
/* using NAME_t, the pointer, and strides NAME_batch, .. by the names of `axes` (NULL: batch, head, row, column). */
void attention_print_tensor(struct kernel_print *print, const struct cuda_attention *c, const struct tensor *tensor,
                            const char *name, const char *const axes[4]);
/* constexpr int NAME_RUN as well. */
void attention_print_operand(struct kernel_print *print, const struct cuda_attention *c, const struct tensor *tensor,
                             const char *name, const char *run_name);
/* A container's page size as NAME_PAGE, and its table; 0: NAME is no container. */
void attention_print_pages(struct kernel_print *print, const struct cuda_attention *c, const struct tensor *table,
                           const struct tensor *container, const char *name, const char *page_name);
/* The arithmetic, sizes, and what scores depend on. */
void attention_print_scores(struct kernel_print *print, const struct cuda_attention *c);
/* Queries and keys in use, by batch entry or as running sums. */
void attention_print_lengths(struct kernel_print *print, const struct cuda_attention *c);
/* Which tiles of scores take part. */
void attention_print_block_mask(struct kernel_print *print, const struct cuda_attention *c);
void attention_print_tile(struct kernel_print *print, const struct attention_tile *tile, const char *columns_name,
                          int64_t shared_bytes);
/* The bits of a double, as an argument. */
void attention_print_real(struct kernel_print *print, double number, const char *name);
/* Seed, offset, and the part that is kept. */
void attention_print_dropout(struct kernel_print *print, const struct cuda_attention *c);
/* The tensor where somebody wants it, and a constant that says whether. */
void attention_print_wanted(struct kernel_print *print, const struct cuda_attention *c, const struct tensor *tensor,
                            const char *name, const char *flag);

/* ---- modifier.c: score modifiers as functions of (arguments, batch, head, query, key, scaled product) ---- */

/* Whether the modifier reads an operand of the operation. */
bool attention_modifies_with(const struct cuda_attention *c, const struct tensor *tensor);
/* Whether kernels can evaluate it. */
weftStatus_t attention_check_modifier(const struct cuda_attention *c);
/* HAS_MODIFIER, its operands, and modified(), which gives the score. is_rounded: whatever is made of scores has 16
   bits or fewer. */
void attention_print_modifier(struct kernel_print *print, const struct cuda_attention *c, bool is_rounded);
/* Behind it: modified_between(), factor_before() and factor_after(), which are the same in three. */
void attention_print_modifier_factors(struct kernel_print *print, const struct cuda_attention *c);
/* Whether nothing but a tanh lies between the factors. */
bool attention_is_soft_cap(const struct cuda_attention *c);
void attention_print_soft_cap(struct kernel_print *print, const struct cuda_attention *c, bool is_rounded);
void attention_print_between_gradient(struct kernel_print *print, const struct cuda_attention *c);
/* modified_gradient(.., gradient): that of the scaled product from that of the score. */
void attention_print_modifier_gradient(struct kernel_print *print, const struct cuda_attention *c);
/* operand_gradient(.., gradient): that of the operand whose gradient number `i` is. */
void attention_print_operand_gradient(struct kernel_print *print, const struct cuda_attention *c, int64_t i);

/* ---- forward.c, backward.c, decode.c ---- */

/* Scales of operands and results, and where the largest numbers go. is_packed: rows of a tile are of several heads. */
void attention_print_scales(struct kernel_print *print, const struct cuda_attention *c, bool is_packed);
/* Where the largest numbers go, and constants that say whether somebody wants them. */
void attention_print_amax(struct kernel_print *print, const struct cuda_attention *c);
/* A tensor of one number, and a constant that says whether it is there. */
void attention_print_scale(struct kernel_print *print, const struct cuda_attention *c, const struct tensor *scale,
                           const char *name, const char *flag);
/* NAME_scales(arguments, batch, head) of element_scales.cuh: those of an operand, or, NULL, none. */
void attention_print_element_scales(struct kernel_print *print, const struct cuda_attention *c,
                                    const struct tensor *scales, const struct tensor *operand, const char *name);
/* Where somebody wants largest numbers: the kernel that clears them. */
weftStatus_t attention_build_amax_clear(const struct cuda_attention *c, struct cuda_step *state, struct arena *arena);
/* What ends a row of the forward pass. */
void attention_print_ends(struct kernel_print *print, const struct cuda_attention *c);
/* Where splits of the keys leave their partial sums; gives the bytes of workspace. */
int64_t attention_print_splits(struct kernel_print *print, const struct cuda_attention *c, int64_t splits);
/* The kernel that joins them. */
weftStatus_t attention_build_merge(const struct cuda_attention *c, int64_t splits, struct cuda_kernel *kernel,
                                   struct arena *arena);

weftStatus_t attention_forward_accepts(const struct cuda_attention *c);
weftStatus_t attention_forward_build(struct step *step, const struct cuda_attention *c, struct cuda_step *state,
                                     struct arena *arena);
weftStatus_t attention_backward_accepts(const struct cuda_attention *c);
weftStatus_t attention_backward_build(struct step *step, const struct cuda_attention *c, struct cuda_step *state,
                                      struct arena *arena);

/* The gradients of the bias and of the score modifier's operands, alone: whether somebody wants some, the seconds that
   they take, and their kernels, which have the workspace from `workspace_at` on. */
bool attention_backward_wants_biases(const struct cuda_attention *c);
double attention_backward_predict_biases(const struct cuda_attention *c);
weftStatus_t attention_backward_build_biases(struct step *step, const struct cuda_attention *c, int64_t workspace_at,
                                             struct cuda_step *state, struct arena *arena);

#endif
