/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small matrices in the cache, without packing: C[m,n] (+)= A[m,k] B[k,n] in float. A may be contiguous
   along either index, because its elements are broadcast; only the columns of B and C must be contiguous. This file
   must not know tensors, operations or threads. */
#ifndef WEFT_ENGINES_CPU_GEMM_SMALL_H
#define WEFT_ENGINES_CPU_GEMM_SMALL_H

#include <stdbool.h>
#include <stdint.h>

/* Strides in elements, from row to row and from depth to depth. */
struct small_factor {
    const float *at;
    int64_t row, depth; /* B has contiguous columns, so its row stride is not used */
};

/* Computes blocks of C of the kernel's rows and columns, one below the other, up to m rows; row pitch `ld` in
   elements. */
typedef void small_multiply(int64_t m, int64_t depth, struct small_factor a, const float *b, int64_t b_depth, float *c,
                            int64_t ld, bool adds);

/* Element types of rows that are read in place, at any address. */
enum small_type { SMALL_FLOAT, SMALL_BF16, SMALL_HALF, SMALL_TYPES };

/* A few vectors of floats and a matrix with a row pitch of `ld` elements; each row is read once, in place. */
struct small_skinny {
    int count;
    int64_t rows, depth;
    const void *matrix;
    int64_t ld;
};
typedef void small_dots(const struct small_skinny *few, const float *vectors, int64_t vector_ld, float *products,
                        int64_t product_ld);
typedef void small_combine(const struct small_skinny *few, const float *weights, int64_t weight_ld, float *sums,
                           int64_t sum_ld);

/* One compiled version of the innermost loops of products, for blocks of C with `columns` columns and with half as
   many. */
struct small_kernel {
    const char *name; /* "avx512 8x32" */
    int rows, columns;
    small_multiply *full, *half;
    /* Indexed by the matrix's type; NULL: not available. products[i][row] = matrix[row] . vectors[i]; rows up to the
       next multiple of 4 are written. sums[i] += sum of weights[i][row] matrix[row]; a row of weight 0 is not read. */
    small_dots *dots[SMALL_TYPES];
    small_combine *combine[SMALL_TYPES];
};

enum { SMALL_ROWS = 8, SMALL_COLUMNS = 32 }; /* maximum of all kernels, whose columns divide SMALL_COLUMNS */

/* The kernels that this CPU supports, best first; NULL if rank is past the last one. */
const struct small_kernel *small_kernel(int rank);

/* Computes whole blocks: reads A and writes C up to the next multiple of the kernel's rows, reads B and writes C up to
   a multiple of half its columns. That memory must exist; its contents do not affect the result. */
void small_product(const struct small_kernel *kernel, int64_t m, int64_t n, int64_t depth, struct small_factor a,
                   struct small_factor b, float *c, int64_t ld, bool adds);

#endif
