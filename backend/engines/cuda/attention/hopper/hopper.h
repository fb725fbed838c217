/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on Hopper, by its copy engine (TMA) and tensor cores (wgmma): what its kernels share. What they decline,
   the portable attention family takes. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_HOPPER_H
#define WEFT_ENGINES_CUDA_ATTENTION_HOPPER_H

#include "engines/cuda/attention/attention.h"

/* ---- widen.c: operands of FP8 that become f16 or bf16, in the workspace, before the other kernels of a step ---- */

enum { WIDENED_MAX = 7 };
struct attention_wide_operand {
    const struct tensor *source, *scales; /* scales: of blocks, which multiply elements; NULL: there are none */
    struct tensor tensor;                 /* the source as it is then */
    int64_t offset;                       /* behind workspace_at */
};
struct attention_widened {
    weftDataType_t type;
    int count;
    struct attention_wide_operand operands[WIDENED_MAX];
    int64_t bytes, workspace_at;
};

/* Adds an operand to those that are widened. */
void attention_hopper_widen(struct attention_widened *w, const struct tensor *source, const struct tensor *scales);
/* What an operand is widened to; NULL: it is read as it is. */
const struct attention_wide_operand *attention_hopper_wide(const struct cuda_attention *c, const struct tensor *source);
weftStatus_t attention_hopper_check_widened(const struct cuda_attention *c);
double attention_hopper_predict_widening(const struct cuda_attention *c);
weftStatus_t attention_hopper_build_widening(const struct cuda_attention *c, struct cuda_step *state,
                                             struct arena *arena);

/* ---- print.c ---- */

enum {
    SHARED_MAX = 232448, /* all bytes that a block can have */
    SQUARE = 64,         /* keys and columns of bytes that are turned over together: see byte_squares_sm90.cuh */
};

weftStatus_t attention_hopper_check_device(const struct device *device);

/* Rows of 16 bits that the copy engine takes: contiguous, strides and addresses multiples of 16 bytes. */
weftStatus_t attention_hopper_check_boxed(const struct cuda_attention *c, const struct tensor *tensor);

/* The same of any type. */
weftStatus_t attention_hopper_check_rows(const struct cuda_attention *c, const struct tensor *tensor);

/* A map of a [B, H, S, D] tensor, padded or ragged: boxes of so many rows of 128 bytes, or of 64, swizzled by as
   much. */
void attention_hopper_print_box_map(struct kernel_print *print, const struct cuda_attention *c,
                                    const struct tensor *tensor, int rows, int row_bytes, const char *name);
/* Of 128 bytes. */
void attention_hopper_print_map(struct kernel_print *print, const struct cuda_attention *c, const struct tensor *tensor,
                                int rows, const char *name);
/* Behind all maps: NAME_entry(arguments, batch entry, rows in use), which gives the coordinates of a tensor's batch
   entry in its map, and NAME_IS_RAGGED. */
void attention_hopper_print_entry(struct kernel_print *print, const struct cuda_attention *c,
                                  const struct tensor *tensor, const char *name);

/* Whether the copy engine can bring the bias in boxes of 64 keys: of 16 bits, one for each query and key, in rows of
   whole 16 bytes. Stride 0 is no stride to the copy engine. */
bool attention_hopper_has_boxed_bias(const struct cuda_attention *c);

/* Whether dropout has a mask of numbers, that are not bits. */
bool attention_hopper_multiplies_by_mask(const struct cuda_attention *c);

/* The scale, lengths, and which bounds hide something. */
void attention_hopper_print_scores(struct kernel_print *print, const struct cuda_attention *c);

/* What joins scaled products: ALiBi, the bias, the score modifier. is_rounded: as for attention_print_modifier. */
void attention_hopper_print_terms(struct kernel_print *print, const struct cuda_attention *c, bool is_rounded);

/* D[64 x columns] (+)= A[64 x 16] B[16 x columns] of 16-bit operands, or, with is_fp8, of 32 along k, both K-major:
   NAME(d, a, b). Those in shared memory are given by the low words of their descriptors: sums of 64 bits would take
   registers. is_fresh: what was in d is dead before, and the compiler may know it. b_is_narrow: its rows have 64 bytes.
   b_type: NULL where it is a's. */
struct attention_product {
    const char *name, *type;
    int columns;
    enum { PRODUCT_A_K, PRODUCT_A_MN, PRODUCT_A_REGISTERS } a; /* K-major, MN-major, or four registers */
    bool b_is_mn, is_fresh, is_fp8, b_is_narrow;
    const char *b_type;
    enum {
        PRODUCT_REPLACES,
        PRODUCT_ADDS,
        PRODUCT_ADDS_AT_RUN_TIME
    } adds; /* the last one: as NAME(d, a, b, adds) says */
};
void attention_hopper_print_product(struct text *code, const struct attention_product *product);

/* ---- backward.c; has_sums: one pass makes all gradients, those of queries as sums of blocks in any order ---- */

weftStatus_t attention_hopper_backward_accepts(const struct cuda_attention *c, bool has_sums, double *seconds);
weftStatus_t attention_hopper_backward_build(struct step *step, const struct cuda_attention *c, bool has_sums,
                                             struct cuda_step *state, struct arena *arena);

/* ---- forward.c ---- */

/* The knob KERNEL_CFG: who takes which tile. Static: fixed beforehand; dynamic: whoever is free takes the next. */
enum { ATTENTION_SCHEDULE_CHOSEN, ATTENTION_SCHEDULE_STATIC, ATTENTION_SCHEDULE_DYNAMIC };

weftStatus_t attention_hopper_forward_accepts(const struct cuda_attention *c, double *seconds);
weftStatus_t attention_hopper_forward_build(struct step *step, const struct cuda_attention *c,
                                            const struct knob_choices *knobs, struct cuda_step *state,
                                            struct arena *arena);

#endif
