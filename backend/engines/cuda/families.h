/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernel families. */
#ifndef WEFT_ENGINES_CUDA_FAMILIES_H
#define WEFT_ENGINES_CUDA_FAMILIES_H

#include "engines/engine.h"

/* Products. */
extern const struct family cuda_contraction; /* a matmul or convolution and what follows it */
extern const struct family cuda_hopper;      /* the same of 16 or 8 bits on Hopper, by its copy engine and wgmma */
extern const struct family cuda_contraction_tf32, cuda_hopper_tf32; /* the same of floats, narrowed to tf32 */
/* The same of operands that are copied first as Hopper's copy engine wants them. */
extern const struct family cuda_packed, cuda_packed_tf32;
extern const struct family cuda_weight_only;                 /* a few rows times weights of 4 or 8 bits */
extern const struct family cuda_weight_only_sm90;            /* the same of some hundred rows on Hopper */
extern const struct family cuda_stem;                        /* convolutions of images with few channels */
extern const struct family cuda_stem_sm90;                   /* forward convolutions of 8 channels on Hopper */
extern const struct family cuda_patch_sm90;                  /* convolutions of stride 1 on Hopper, images read once */
extern const struct family cuda_patch_wgrad_sm90;            /* filter gradients of few channels, likewise */
extern const struct family cuda_depthwise;                   /* convolutions with one channel per group */
extern const struct family cuda_grouped;                     /* products of a mixture of experts */
extern const struct family cuda_grouped_sm90;                /* the same of 16 or 8 bits on Hopper */
extern const struct family cuda_attention_decode;            /* attention of few queries against many keys */
extern const struct family cuda_attention;                   /* scaled dot-product attention, forward and backward */
extern const struct family cuda_attention_hopper;            /* the same on Hopper, by its copy engine and wgmma */
extern const struct family cuda_attention_hopper_unordered;  /* gradients there, those of queries summed in any order */
extern const struct family cuda_spelled_attention;           /* attention spelled out of other operations */
extern const struct family cuda_spelled_attention_unordered; /* its gradients, summed in any order */

/* What memory bounds. */
extern const struct family cuda_channels; /* batch norm of channels that are neighbours in memory, in one launch */
extern const struct family cuda_rows;     /* reductions, softmax and norms, and the pointwise operations around them */
extern const struct family cuda_window;   /* pooling and interpolation */
extern const struct family cuda_map;      /* pointwise operations and data movement in one sweep */
extern const struct family cuda_causal;   /* causal convolutions of sequences */
extern const struct family cuda_move;     /* concatenation, and what else only moves elements */
extern const struct family cuda_rng;      /* random numbers */
extern const struct family cuda_block_scale; /* numbers of few bits with a scale per block, and back */
extern const struct family cuda_staged;      /* what the others cannot address, through plain copies */

#endif
