/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of the Hopper attention kernels, which use TMA and wgmma. The portable attention family handles
   what they decline. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_HOPPER_H
#define WEFT_ENGINES_CUDA_ATTENTION_HOPPER_H

#include "engines/cuda/attention/attention.h"
#include "engines/cuda/attention/hopper/hopper_geometry.h"

/* ---- widen.c: converts FP8 operands to f16 or bf16, in the workspace, before the other kernels of a step ---- */

enum { WIDENED_MAX = 7 };
struct attention_wide_operand {
    const struct tensor *narrow, *scales; /* block scales, by which elements are multiplied; or NULL */
    struct tensor tensor;                 /* the converted operand */
    int64_t offset;                       /* relative to workspace_at */
};
struct attention_widened {
    weftDataType_t type;
    int count;
    struct attention_wide_operand operands[WIDENED_MAX];
    int64_t bytes, workspace_at;
};

/* Adds an operand to those that are converted. */
void attention_hopper_widen(struct attention_widened *w, const struct tensor *narrow, const struct tensor *scales);
/* The converted version of an operand, or NULL if it is read directly. */
const struct attention_wide_operand *attention_hopper_wide(const struct cuda_attention *c, const struct tensor *narrow);
weftStatus_t attention_hopper_check_widened(const struct cuda_attention *c);
double attention_hopper_predict_widening(const struct cuda_attention *c);
weftStatus_t attention_hopper_build_widening(const struct cuda_attention *c, struct cuda_step *state,
                                             struct arena *arena);

/* ---- emit.c ---- */

weftStatus_t attention_hopper_check_device(const struct device *device);

/* Checks that TMA can load the tensor: contiguous rows, strides and addresses that are multiples of 16 bytes, and q's
   16-bit type. */
weftStatus_t attention_hopper_check_tma_16bit(const struct cuda_attention *c, const struct tensor *tensor);

/* Checks the same for any type. */
weftStatus_t attention_hopper_check_tma_rows(const struct cuda_attention *c, const struct tensor *tensor);

/* Emits a tensor map of a [B, H, S, D] tensor, padded or ragged: boxes of `rows` rows of 128 or 64 bytes, with a
   swizzle of the same size. */
void attention_hopper_emit_box_map(struct kernel_source *source, const struct cuda_attention *c,
                                   const struct tensor *tensor, int rows, int row_bytes, const char *name);
/* Emits a map with boxes of 128-byte rows. */
void attention_hopper_emit_map(struct kernel_source *source, const struct cuda_attention *c,
                               const struct tensor *tensor, int rows, const char *name);
/* To be called after all maps. Emits NAME_entry(arguments, batch entry, rows in use), which returns the TMA coordinates
   of a batch entry, and NAME_IS_RAGGED. */
void attention_hopper_emit_entry(struct kernel_source *source, const struct cuda_attention *c,
                                 const struct tensor *tensor, const char *name);

/* True if TMA can load the bias in boxes of 64 keys: 16-bit, one element per query and key, rows of a multiple of 16
   bytes. TMA has no broadcast: a stride of 0 is not supported. */
bool attention_hopper_has_tma_bias(const struct cuda_attention *c);

/* True if the dropout mask is numeric rather than boolean. */
bool attention_hopper_multiplies_by_mask(const struct cuda_attention *c);

/* Emits the scale, the lengths, and which bounds hide keys. */
void attention_hopper_emit_scores(struct kernel_source *source, const struct cuda_attention *c);

/* Emits the terms of the scores: ALiBi, the bias, the score modifier. is_rounded: see attention_emit_modifier. */
void attention_hopper_emit_terms(struct kernel_source *source, const struct cuda_attention *c, bool is_rounded);

/* A wgmma wrapper, D[64 x columns] (+)= A[64 x 16] B[16 x columns] of 16-bit operands; with is_fp8, k is 32 and both
   operands are K-major. Signature: NAME(d, a, b). Shared memory operands are given by the low words of their
   descriptors, because 64-bit additions would cost registers. is_fresh: d is write-only, so that the compiler knows its
   old value is dead. b_is_narrow: B has 64-byte rows. b_type: NULL if it is the type of A. */
struct attention_mma {
    const char *name, *type;
    int columns;
    enum { MMA_A_K, MMA_A_MN, MMA_A_REGISTERS } a; /* K-major, MN-major, or in registers */
    bool b_is_mn, is_fresh, is_fp8, b_is_narrow;
    const char *b_type;
    enum { MMA_REPLACES, MMA_ADDS, MMA_ADDS_AT_RUN_TIME } adds; /* at run time: NAME(d, a, b, adds) */
};
void attention_hopper_emit_mma(struct text *code, const struct attention_mma *product);

/* ---- backward.c; reduces_dq: one pass computes all gradients and adds dQ in any order ---- */

weftStatus_t attention_hopper_backward_accepts(const struct cuda_attention *c, bool reduces_dq, double *seconds);
weftStatus_t attention_hopper_backward_build(struct step *step, const struct cuda_attention *c, bool reduces_dq,
                                             struct cuda_step *state, struct arena *arena);

/* ---- forward.c ---- */

/* Values of the knob KERNEL_CFG: tile scheduler. Static: a fixed assignment; dynamic: an idle CTA takes the next
   tile. */
enum { ATTENTION_SCHEDULE_CHOSEN, ATTENTION_SCHEDULE_STATIC, ATTENTION_SCHEDULE_DYNAMIC };

weftStatus_t attention_hopper_forward_accepts(const struct cuda_attention *c, double *seconds);
weftStatus_t attention_hopper_forward_build(struct step *step, const struct cuda_attention *c,
                                            const struct knob_choices *knobs, struct cuda_step *state,
                                            struct arena *arena);

#endif
