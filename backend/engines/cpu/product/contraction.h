/* SPDX-License-Identifier: Apache-2.0 */
/* A matmul or a convolution with pointwise operations behind it, as products of packed matrices: what the parts of the
   family share. */
#ifndef WEFT_ENGINES_CPU_CONTRACTION_H
#define WEFT_ENGINES_CPU_CONTRACTION_H

#include "engines/cpu/core/rows_columns.h"
#include "engines/cpu/product/direct.h"
#include "engines/cpu/product/gemm.h"
#include "engines/cpu/product/pack_dequant.h"
#include "engines/cpu/product/patches.h"
#include "engines/cpu/product/prepacked.h"

/* A factor of a product: how gemm packs it, the value whose memory it is, and what is packed of it already. */
struct factor {
    gemm_pack *pack;
    int group; /* of its panels: the kernel's, or, where those are not whole, B's instead of A's, or 1: floats */
    int value, scale_value; /* the second where it is `scaled` */
    struct prepacked kept;
    union {
        const void *base; /* each of the others begins with it; filled in when it runs */
        struct gemm_matrix matrix;
        struct patches patches;
        struct filter filter;
        struct quantized scaled;
    };
};

/* One product. Its rows, over all of its batch, and its columns are those of the walk. */
struct piece {
    struct gemm gemm;
    struct factor a, b;
    struct rows_columns walk;
    struct direct direct; /* on: the same product without a matrix of patches, where memory is aligned */
};

struct contraction {
    struct program program; /* what becomes of each element of the product */
    int threads;
    int piece_count;
    struct piece *pieces;
};

/* What is multiplied, before it is planned. */
struct product {
    const struct tensor *a, *b;
    weftDataType_t math;
    double alpha, beta;    /* as struct given has them */
    double depth;          /* products that make one element, at most */
    int64_t rows, columns; /* of one product of matrices, about; 0: there is none */
    double packing;        /* multiplications of a FLOAT kernel that packing an element of a row or column costs */
    bool takes_bytes;      /* its plan can pack for a kernel of INT8 */
    bool reads_in_place;   /* or multiplies floats without packing, where that is quicker */
};

/* What a kind of contraction answers. */
struct contraction_kind {
    weftStatus_t (*check)(const struct region *region, const struct node *node);
    struct product (*product)(const struct node *node);
    /* Lists the pieces; the program is compiled. */
    weftStatus_t (*plan)(struct contraction *contraction, const struct region *region, const struct node *node,
                         const struct gemm_kernel *kernel, struct arena *arena);
};

/* Whether what becomes of the product is computed in double. */
bool product_is_wide(const struct product *product);
/* The kernel that multiplies, and whether whole numbers are summed exactly by it. */
const struct gemm_kernel *product_kernel(const struct product *product);
weftStatus_t product_check_exact(const struct descriptor *op, const struct product *product);
/* Where a program stores rows of the product: sums are made there if it stores them as they are. */
struct gemm_place contraction_place(const struct program *program, const struct rows_columns *walk, void *const *values,
                                    int64_t row, int rows, int64_t column);

extern const struct contraction_kind matmul_contraction, conv_contraction;

#endif
