/* SPDX-License-Identifier: Apache-2.0 */
/* A product of rows and weights of 4 or 8 bits with block scales, for the families that dequantise weights on their way
   into the tensor cores. */
#ifndef WEFT_ENGINES_CUDA_WEIGHT_ONLY_H
#define WEFT_ENGINES_CUDA_WEIGHT_ONLY_H

#include "engines/cuda/product/contraction.h"

struct weight_product {
    const struct block_scale_dequantize_op *weights;
    struct contraction c; /* the product of `rest` */
    struct region rest;   /* the region without the dequantising node */
    int nodes[MODES_MAX]; /* the nodes of `rest` */
    int64_t rows, columns, k_count, group, block;
    int64_t a_row, w_row, scale_row, scale_k; /* strides, of A in elements, of W in bytes */
    int length;                               /* weights per access */
    bool scales_sums;                         /* float scales multiply sums; otherwise scales multiply weights, which
                                                 are rounded to the type of A */
};

/* Finds the product of a region, which may still lack the matmul: then the region that it will grow to is checked.
   NOT_SUPPORTED, with a reason, for products that neither family supports, and for more than rows_most rows. */
weftStatus_t weight_product_find(struct weight_product *product, const struct region *region,
                                 const struct device *device, int64_t rows_most);
/* Fails in the same way for blocks that are not multiples of `least` weights along k. */
weftStatus_t weight_product_check_blocks(const struct weight_product *product, int64_t least);
/* Emits the types for product/weight_only/few_bits.cuh, the scales and their strides: fields of the arguments. */
void weight_product_emit(struct kernel_source *source, const struct weight_product *product);
/* Returns the companion nodes of both families: dequantised weights of a matmul. */
int weight_product_companions(const struct graph *graph, int node, int *nodes);

#endif
