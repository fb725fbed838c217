/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernel families. */
#ifndef WEFT_ENGINES_CUDA_FAMILIES_H
#define WEFT_ENGINES_CUDA_FAMILIES_H

#include "engines/engine.h"

/* Matrix products and convolutions. */
extern const struct family cuda_contraction; /* matmul or convolution with its epilogue */
extern const struct family cuda_hopper;      /* the same in 16 or 8 bits, or tf32, on Hopper, with TMA and wgmma */
/* The same for operands that are first copied into a layout that TMA supports. */
extern const struct family cuda_packed;
extern const struct family cuda_batched;          /* batches of small matrices in 16 bits */
extern const struct family cuda_weight_only;      /* a few rows times weights of 4 or 8 bits */
extern const struct family cuda_weight_only_sm90; /* the same for some hundred rows on Hopper */
extern const struct family cuda_stem;             /* convolutions of images with few channels */
extern const struct family cuda_stem_sm90;        /* forward convolutions of 8 channels on Hopper */
/* convolutions of stride 1 on Hopper that read images once */
extern const struct family cuda_patch_sm90;
extern const struct family cuda_patch_wgrad_sm90;  /* filter gradients of few channels, likewise */
extern const struct family cuda_depthwise;         /* depthwise convolutions */
extern const struct family cuda_grouped;           /* grouped products for mixture of experts */
extern const struct family cuda_grouped_sm90;      /* the same in 16 or 8 bits on Hopper */
extern const struct family cuda_attention_decode;  /* attention of few queries to many keys */
extern const struct family cuda_attention;         /* scaled dot-product attention, forward and backward */
extern const struct family cuda_attention_hopper;  /* the same on Hopper, with TMA and wgmma */
extern const struct family cuda_attention_pattern; /* attention matched from primitive operations */

/* Memory-bound operations. */
extern const struct family cuda_channels;    /* batch norm of channels-last tensors, in one launch */
extern const struct family cuda_rows;        /* reductions, softmax and norms, with adjacent pointwise operations */
extern const struct family cuda_window;      /* pooling and interpolation */
extern const struct family cuda_recurrent;   /* steps of recurrent layers */
extern const struct family cuda_map;         /* pointwise operations and data movement in one sweep */
extern const struct family cuda_causal;      /* causal convolutions of sequences */
extern const struct family cuda_scan;        /* cumulative sums, products and extremes */
extern const struct family cuda_top_k;       /* the largest or smallest elements along a dimension */
extern const struct family cuda_grid;        /* samples of images at the positions of a grid */
extern const struct family cuda_affine_grid; /* the positions under affine transformations */
extern const struct family cuda_ctc;         /* losses of sequences without alignment */
extern const struct family cuda_gather;      /* selections by indices, and sums at indices */
extern const struct family cuda_rope;        /* rotary position embedding and its gradient */
extern const struct family cuda_move;        /* concatenation and other copies */
extern const struct family cuda_paged_load;  /* rows from the pages of a cache */
extern const struct family cuda_rng;         /* random numbers */
extern const struct family cuda_block_scale; /* block-scaled quantization and dequantization */
extern const struct family cuda_staged;      /* operands that other families cannot address, through plain copies */

#endif
