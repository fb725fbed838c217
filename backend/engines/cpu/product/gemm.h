/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrix multiplication on the CPU: C[b,m,n] = sum over k of A[b,m,k] * B[b,k,n].
   Callbacks read A and B and receive C, so that matmul of any strides and types, and convolution
   as implicit GEMM, are the same code, with conversions on the way in and epilogues on the way out.
   It must not know tensors, operations or where its operands live. */
#ifndef WEFT_ENGINES_CPU_GEMM_H
#define WEFT_ENGINES_CPU_GEMM_H

#include "weft/weft.h"

#include <stdbool.h>
#include <stdint.h>

/* Copies a part of one operand into a panel of the kernel's factors. For A an index is a row of C, for B a column. The
   panel is [depth / group, width, group], with the kernel's group of A or of B: the element of index first + i at depth
   k0 + d goes to panel[(d / group * width + i) * group + d % group], for i < count and d < depth. k0 is a multiple of
   the group; depth, too, but at the end of k. count <= width; what lies beyond count, and in a last group beyond depth,
   is already zero. At most GEMM_DEPTH groups of B deep. Called by several threads at once. */
typedef void gemm_pack(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                       int depth);

/* Receives a finished part of C: `block` is [rows, columns] of the kernel's type, row-major with
   `ld` elements from row to row, and its corner is C[batch, row, column]. It may be changed in
   place. Each element of C is handed over once, or, unless k is 0, made where it belongs
   (takes_sums); several threads call at once. */
typedef void gemm_store(const void *sink, void *block, int64_t ld, int64_t batch, int64_t row, int rows, int64_t column,
                        int columns);

/* Where rows of C from [row, column] on will be stored: the CPU fetches that while they are computed. */
struct gemm_place {
    char *at; /* NULL: nowhere in particular */
    int64_t row_bytes, column_bytes;
    bool takes_sums; /* C is of the kernel's type, its columns neighbours: sums are made there, not handed over */
};
typedef struct gemm_place gemm_find(const void *sink, int64_t batch, int64_t row, int rows, int64_t column);

enum {
    GEMM_DEPTH = 384, /* groups in a panel of B at most: a sliver of it is as large as a Xeon's L1 cache */
    GEMM_WIDTH = 32   /* of any kernel's panels at most */
};

/* Adds the product of two panels to a block of C, or begins it, if this is the first along k. groups: of B's panel. */
typedef void gemm_multiply(int64_t groups, const void *a, const void *b, void *c, int64_t ld, bool first);

/* The same for sums of floats, where B is no panel: its rows lie in memory `b_step` elements apart, anywhere. */
typedef void gemm_multiply_loose(int64_t depth, const void *a, const void *b, int64_t b_step, void *c, int64_t ld,
                                 bool first);

/* One compiled form of the innermost loop. */
struct gemm_kernel {
    const char *name;            /* "avx2 6x16": what a CPU must have (cpu_runs), and C's block */
    weftDataType_t factors;      /* FLOAT, DOUBLE, BFLOAT16 or INT8: of panels */
    weftDataType_t type;         /* FLOAT, DOUBLE, FLOAT or INT32: of sums and blocks; INT32 wraps around */
    int group_a, group_b;        /* factors at neighbouring depths that lie together in panels of A and of B. Of B as
                                    many bytes as a sum has; of A that, or a multiple: panels are whole groups deep */
    int speed;                   /* multiplications of a column in the time that a FLOAT kernel takes for one */
    int rows, few_rows, columns; /* of C at a time: rows and columns are the widths of A's and of B's panels */
    gemm_multiply *multiply, *multiply_few;          /* all of A's panel, or its first few_rows */
    gemm_multiply_loose *loose[2], *loose_halves[2]; /* the same two for B as it lies, FLOAT or HALF; NULL: none */
    void (*start)(int64_t groups, void *b); /* fills a row in front of B's panel, what sums start from; NULL: none */
    void (*begin)(void), (*end)(void);      /* around a thread's multiplications; NULL: nothing to do */
};

/* The kernels of a type of factors that this CPU runs, best first; NULL when rank is past the last one. Every CPU has
   one of FLOAT and of DOUBLE. How BFLOAT16 is summed: dot.h, tiles.h. */
const struct gemm_kernel *gemm_kernel(weftDataType_t factors, int rank);

struct gemm {
    const struct gemm_kernel *kernel; /* gemm_kernel(WEFT_DATA_FLOAT, 0) */
    int64_t batch, m, n, k;
    gemm_pack *pack_a, *pack_b;
    gemm_store *store;
    gemm_find *find;          /* or NULL */
    const void *a, *b, *sink; /* first arguments of the four */
    /* All panels of an operand, which gemm_pack_whole has made of it for this kernel and these sizes; NULL: they are
       packed as they are needed. Not read where gemm_skinny_accepts the product (few.h). */
    const void *packed_a, *packed_b;
};

/* Bytes of workspace of gemm_run with the same sizes and threads. */
int64_t gemm_workspace_bytes(const struct gemm *gemm, int threads);

/* The same for any m and k up to those that are given, which may be known first when it runs. */
int64_t gemm_workspace_most(const struct gemm *gemm, int threads);

/* Computes C on up to `threads` threads of the pool (threads_count() for all). Each element is summed in one order,
   fixed by k, the kernel and gemm_skinny_accepts, whatever the number of threads. Stores zeros when k is 0. Allocates
   nothing; the workspace, of any alignment, is in use until it returns. */
void gemm_run(const struct gemm *gemm, int threads, void *workspace);

/* All panels of A, or of B: of how many bytes they are, and packing them, on the calling thread. `packed` is aligned to
   a line of the cache. */
int64_t gemm_packed_bytes(const struct gemm *gemm, bool is_b);
void gemm_pack_whole(const struct gemm *gemm, bool is_b, void *packed);

/* An operand in memory, the `source` of the two functions below. Strides count elements, 0 repeats.
   For A, stride is that from row to row; for B, that from column to column. */
struct gemm_matrix {
    const void *base;
    weftDataType_t type;
    int64_t stride, depth_stride;
    int batch_rank; /* the batch index is row-major over batch_dims; 0 when there is one matrix */
    int64_t batch_dims[WEFT_DIM_MAX], batch_strides[WEFT_DIM_MAX];
};
gemm_pack gemm_pack_matrix, gemm_pack_matrix_double; /* for FLOAT kernels, for DOUBLE kernels */

/* The element that a panel of a matrix begins with: its index, and its address, where that is a whole byte. */
int64_t gemm_index(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0);
const char *gemm_corner(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0);

/* Transposes rows [count, depth] of words of 4 bytes, `ld` bytes from row to row, into a panel [depth, width]. Words
   may lie anywhere. */
void gemm_transpose(void *panel, int width, const void *rows, int64_t ld, int count, int depth);

/* Whether floats can be read where they lie: user memory promises no alignment. */
bool gemm_has_floats(const struct gemm_matrix *matrix);

/* The same for any kernel, whose factors hold all values of the matrix's type. */
gemm_pack *gemm_pack_of_a(const struct gemm_kernel *kernel), *gemm_pack_of_b(const struct gemm_kernel *kernel);

/* From what another function packs. */
typedef void gemm_pack_composed(gemm_pack *pack, const void *source, void *panel, int width, int64_t batch,
                                int64_t first, int count, int64_t k0, int depth);

/* What `pack` makes for FLOAT kernels, for BFLOAT16 ones: floats are cut off to their upper half. */
gemm_pack_composed gemm_pack_halved;

/* What `pack` makes for BFLOAT16 ones in groups of B, in groups of 64 bytes, as AMX has A. */
gemm_pack_composed gemm_pack_grouped;

#endif
