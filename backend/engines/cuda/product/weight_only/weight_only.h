/* SPDX-License-Identifier: Apache-2.0 */
/* A product of rows and weights of 4 or 8 bits with a scale per block, as the families see it that dequantise weights
   on their way into the tensor cores. */
#ifndef WEFT_ENGINES_CUDA_WEIGHT_ONLY_H
#define WEFT_ENGINES_CUDA_WEIGHT_ONLY_H

#include "engines/cuda/product/contraction.h"

struct weight_product {
    const struct block_scale_dequantize_op *weights;
    struct contraction c; /* of `rest` */
    struct region rest;   /* without the node that dequantises */
    int nodes[MODES_MAX]; /* of it */
    int64_t rows, columns, k_count, group, block;
    int64_t a_row, w_row, scale_row, scale_k; /* strides: of A in elements, of W in bytes */
    int length;                               /* weights in one access */
    bool scales_sums;                         /* by scales as floats; else they round weights to the type of A */
};

/* The product of a region, which may be weights alone: it is judged by what it shall grow to. NOT_SUPPORTED and a
   sentence for what neither family takes, and for more than rows_most rows. */
weftStatus_t weight_product_find(struct weight_product *product, const struct region *region,
                                 const struct device *device, int64_t rows_most);
/* The same for blocks that are not multiples of so many weights along k. */
weftStatus_t weight_product_check_blocks(const struct weight_product *product, int64_t least);
/* Names of the types that product/weight_only/few_bits.cuh wants, and the scales and their strides: fields of the
   arguments. */
void weight_product_emit(struct kernel_source *source, const struct weight_product *product);
/* Weights that are dequantised for a matmul: companions of both families. */
int weight_product_companions(const struct graph *graph, int node, int *nodes);

#endif
