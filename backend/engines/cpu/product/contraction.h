/* SPDX-License-Identifier: Apache-2.0 */
/* A matmul or a convolution with fused pointwise operations, as products of packed matrices: definitions that the parts
   of the family share. */
#ifndef WEFT_ENGINES_CPU_CONTRACTION_H
#define WEFT_ENGINES_CPU_CONTRACTION_H

#include "engines/cpu/core/rows_columns.h"
#include "engines/cpu/product/direct.h"
#include "engines/cpu/product/gemm.h"
#include "engines/cpu/product/pack_dequant.h"
#include "engines/cpu/product/patches.h"
#include "engines/cpu/product/prepacked.h"

/* A factor of a product: its pack function, the value that contains it, and its prepacked panels. */
struct factor {
    gemm_pack *pack;
    /* group size of its panels: the kernel's, except for panels that are packed in two steps, where it is B's even for
       A, or 1 for floats */
    int group;
    int value, scale_value; /* scale_value is only used by `scaled` */
    struct prepacked prepacked;
    union {
        const void *base; /* must be the first field of the other structs; set when the piece runs */
        struct gemm_matrix matrix;
        struct patches patches;
        struct filter filter;
        struct quantized scaled;
    };
};

/* One product. Its rows, over the whole batch, and its columns are those of the traversal. */
struct piece {
    struct gemm gemm;
    struct factor a, b;
    struct rows_columns walk;
    struct direct direct; /* is_on: the same product without a matrix of patches, used if memory is aligned */
};

struct contraction {
    struct program program; /* epilogue of each element of the product */
    int threads;
    int piece_count;
    struct piece *pieces;
};

/* The operands of a product, before it is planned. */
struct product {
    const struct tensor *a, *b;
    weftDataType_t math;
    double alpha, beta;    /* as in struct given */
    double depth;          /* maximum number of products per element */
    int64_t rows, columns; /* approximate size of one matrix product; 0: no matrix product */
    double packing;        /* cost of packing an element of a row or column, in multiplications of a FLOAT kernel */
    bool packs_bytes;      /* its plan can pack for an INT8 kernel */
    bool reads_in_place;   /* or multiplies floats without packing if that is faster */
};

/* The interface of a kind of contraction. */
struct contraction_kind {
    weftStatus_t (*check)(const struct region *region, const struct node *node);
    struct product (*product)(const struct node *node);
    /* Fills in the pieces; the program is already compiled. */
    weftStatus_t (*plan)(struct contraction *contraction, const struct region *region, const struct node *node,
                         const struct gemm_kernel *kernel, struct arena *arena);
};

/* True if the epilogue is computed in double. */
bool product_is_wide(const struct product *product);
/* Chooses the kernel; product_check_exact checks that it sums integers exactly. */
const struct gemm_kernel *product_kernel(const struct product *product);
weftStatus_t product_check_exact(const struct descriptor *op, const struct product *product);
/* The memory in which a program stores rows of the product; sums are computed there if it stores them without
   changes. */
struct gemm_destination contraction_destination(const struct program *program, const struct rows_columns *walk,
                                                void *const *values, int64_t row, int rows, int64_t column);

extern const struct contraction_kind matmul_contraction, conv_contraction;

#endif
