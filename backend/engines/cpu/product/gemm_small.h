/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small matrices that lie in the caches as they are: C[m,n] (+)= A[m,k] B[k,n] in float. Nothing is packed:
   A may lie along either index, as its elements are broadcast, and only the columns of B and C must be neighbours.
   It must not know tensors, operations or threads. */
#ifndef WEFT_ENGINES_CPU_GEMM_SMALL_H
#define WEFT_ENGINES_CPU_GEMM_SMALL_H

#include <stdbool.h>
#include <stdint.h>

/* Strides in elements: from row to row, and from depth to depth. */
struct small_factor {
    const float *at;
    int64_t row, depth; /* of B the row is not read: its columns are neighbours */
};

/* Blocks of C below each other, of the kernel's rows and columns, until they have m rows; `ld` elements from row to
   row. */
typedef void small_multiply(int64_t m, int64_t depth, struct small_factor a, const float *b, int64_t b_depth, float *c,
                            int64_t ld, bool adds);

/* What rows that are read in place are of, at any address. */
enum small_type { SMALL_FLOAT, SMALL_BF16, SMALL_HALF, SMALL_TYPES };

/* A few vectors of floats beside a matrix of rows `ld` elements apart, each row read once from wherever it lies. */
struct small_few {
    int count;
    int64_t rows, depth;
    const void *matrix;
    int64_t ld;
};
typedef void small_dots(const struct small_few *few, const float *vectors, int64_t vector_ld, float *products,
                        int64_t product_ld);
typedef void small_combine(const struct small_few *few, const float *weights, int64_t weight_ld, float *sums,
                           int64_t sum_ld);

/* One compiled form of the innermost loops: of products, for blocks of C of `columns`, and of half as many. */
struct small_kernel {
    const char *name; /* "avx512 8x32" */
    int rows, columns;
    small_multiply *whole, *half;
    /* By the matrix's type; NULL: none. products[i][row] = matrix[row] . vectors[i]; rows up to the next multiple of 4
       are written. sums[i] += sum of weights[i][row] matrix[row]; a row of weight 0 is not read. */
    small_dots *dots[SMALL_TYPES];
    small_combine *combine[SMALL_TYPES];
};

enum { SMALL_ROWS = 8, SMALL_COLUMNS = 32 }; /* of any kernel at most; its columns divide SMALL_COLUMNS */

/* The kernels that this CPU runs, best first; NULL when rank is past the last one. */
const struct small_kernel *small_kernel(int rank);

/* Whole blocks are computed: A is read, and C written, up to the next multiple of the kernel's rows, B and C up to that
   of half its columns. Memory must be there; what lies there changes nothing inside. */
void small_product(const struct small_kernel *kernel, int64_t m, int64_t n, int64_t depth, struct small_factor a,
                   struct small_factor b, float *c, int64_t ld, bool adds);

#endif
