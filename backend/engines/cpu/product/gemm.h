/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrix multiplication on the CPU: C[b,m,n] = sum over k of A[b,m,k] * B[b,k,n]. Callbacks read A and B and
   receive C, so the same code serves matmul with any strides and types and convolution as implicit GEMM, with
   conversions during packing and epilogues during stores. This file must not know tensors, operations or the location
   of its operands. */
#ifndef WEFT_ENGINES_CPU_GEMM_H
#define WEFT_ENGINES_CPU_GEMM_H

#include "weft/weft.h"

#include <stdbool.h>
#include <stdint.h>

/* Copies a part of one operand into a panel of the kernel's factors. The index of A is a row of C, that of B a column.
   The panel is [depth / group, width, group], with the kernel's group of A or of B: the element of index first + i at
   depth k0 + d goes to panel[(d / group * width + i) * group + d % group], for i < count and d < depth. k0 is a
   multiple of the group, and so is depth, except at the end of k. count <= width; the elements past count, and past
   depth in the last group, are already zero. At most GEMM_DEPTH groups of B deep. Several threads call it
   concurrently. */
typedef void gemm_pack(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                       int depth);

/* Receives a finished part of C: `block` is [rows, columns] of the kernel's type, row-major with a row pitch of `ld`
   elements, and its first element is C[batch, row, column]. It may be changed in place. Each element of C is passed
   once, or, unless k is 0, is computed in place (accepts_sums). Several threads call it concurrently. */
typedef void gemm_store(const void *sink, void *block, int64_t ld, int64_t batch, int64_t row, int rows, int64_t column,
                        int columns);

/* Memory to which rows of C, starting at [row, column], will be stored: it is prefetched while they are computed. */
struct gemm_destination {
    char *at; /* NULL if unknown */
    int64_t row_bytes, column_bytes;
    /* C has the kernel's type and contiguous columns: sums are computed in place instead of being passed to the sink */
    bool accepts_sums;
};
typedef struct gemm_destination gemm_find(const void *sink, int64_t batch, int64_t row, int rows, int64_t column);

enum {
    GEMM_DEPTH = 384, /* maximum groups in a panel of B: a sliver of it is as large as a Xeon's L1 cache */
    GEMM_WIDTH = 32   /* maximum width of any kernel's panels */
};

/* Adds the product of two panels to a block of C, or overwrites it if this is the first along k. groups: the number of
   groups in B's panel. */
typedef void gemm_multiply(int64_t groups, const void *a, const void *b, void *c, int64_t ld, bool first);

/* Like gemm_multiply, for sums of floats with B in place instead of a panel: its row pitch is `b_step` elements, at any
   address. */
typedef void gemm_multiply_in_place(int64_t depth, const void *a, const void *b, int64_t b_step, void *c, int64_t ld,
                                    bool first);

/* One compiled version of the innermost loop. */
struct gemm_kernel {
    const char *name;       /* "avx2 6x16": instruction set required (cpu_runs), and the block of C */
    weftDataType_t factors; /* FLOAT, DOUBLE, BFLOAT16 or INT8: type of panels */
    weftDataType_t type;    /* FLOAT, DOUBLE, FLOAT or INT32: type of sums and blocks; INT32 wraps around */
    /* numbers of factors that are adjacent both along the depth and in panels of A and of B. A group of B has as many
       bytes as a sum, one of A the same or a multiple: panels are whole groups deep */
    int group_a, group_b;
    int speed;                              /* multiplications of a column in the time of one in a FLOAT kernel */
    int rows, few_rows, columns;            /* block of C: rows and columns are the widths of A's and B's panels */
    gemm_multiply *multiply, *multiply_few; /* for all rows of A's panel, or for its first few_rows */
    gemm_multiply_in_place *in_place[2],
        *in_place_halves[2]; /* the same two with B in place, FLOAT or HALF; NULL: none */
    /* fills an extra row at the start of B's panel with the initial values of sums; NULL: none */
    void (*start)(int64_t groups, void *b);
    /* called before and after a thread's multiplications; NULL: nothing to do */
    void (*begin)(void), (*end)(void);
};

/* The kernels for a type of factors that this CPU supports, best first; NULL if rank is past the last one. Every CPU
   has FLOAT and DOUBLE kernels. For the summation of BFLOAT16 see dot.h and gemm_amx.h. */
const struct gemm_kernel *gemm_kernel(weftDataType_t factors, int rank);

struct gemm {
    const struct gemm_kernel *kernel; /* gemm_kernel(WEFT_DATA_FLOAT, 0) */
    int64_t batch, m, n, k;
    gemm_pack *pack_a, *pack_b;
    gemm_store *store;
    gemm_find *find;          /* or NULL */
    const void *a, *b, *sink; /* first arguments of the four callbacks */
    /* All panels of an operand, packed by gemm_prepack for this kernel and these sizes; NULL: packed on demand. Ignored
       if gemm_skinny_accepts the product (gemm_skinny.h). */
    const void *packed_a, *packed_b;
};

/* Bytes of workspace of gemm_run with the same sizes and threads. */
int64_t gemm_workspace_bytes(const struct gemm *gemm, int threads);

/* An upper bound of gemm_workspace_bytes for any m and k up to the given ones, for sizes that are known only at run
   time. */
int64_t gemm_workspace_max(const struct gemm *gemm, int threads);

/* Computes C on up to `threads` threads of the pool (threads_count() for all). Each element is summed in a fixed order,
   which depends on k, the kernel and gemm_skinny_accepts, but not on the number of threads. Stores zeros if k is 0.
   Allocates nothing; the workspace may have any alignment and is in use until it returns. */
void gemm_run(const struct gemm *gemm, int threads, void *workspace);

/* Size in bytes of all panels of A or of B, and packing them on the calling thread. `packed` must be aligned to a cache
   line. */
int64_t gemm_packed_bytes(const struct gemm *gemm, bool is_b);
void gemm_prepack(const struct gemm *gemm, bool is_b, void *packed);

/* An operand in memory: the `source` of the two functions below. Strides are in elements; 0 broadcasts. stride: for A
   from row to row, for B from column to column. */
struct gemm_matrix {
    const void *base;
    weftDataType_t type;
    int64_t stride, depth_stride;
    int batch_rank; /* the batch index is row-major over batch_dims; 0: a single matrix */
    int64_t batch_dims[WEFT_DIM_MAX], batch_strides[WEFT_DIM_MAX];
};
gemm_pack gemm_pack_matrix; /* for FLOAT kernels */

/* Index of the element at which a panel of a matrix starts, and its address, if that is a whole byte. */
int64_t gemm_index(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0);
const char *gemm_corner(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0);

/* Transposes rows [count, depth] of 4-byte words with pitch `ld` in bytes into a panel [depth, width]. Words may be
   misaligned. */
void gemm_transpose(void *panel, int width, const void *rows, int64_t ld, int count, int depth);

/* True if the matrix contains aligned floats, which can be read in place: user memory may be misaligned. */
bool gemm_has_floats(const struct gemm_matrix *matrix);

/* Return the function that packs any matrix whose type the factors of this kernel can represent exactly. */
gemm_pack *gemm_pack_of_a(const struct gemm_kernel *kernel), *gemm_pack_of_b(const struct gemm_kernel *kernel);

/* Packs through another pack function. */
typedef void gemm_pack_composed(gemm_pack *pack, const void *source, void *panel, int width, int64_t batch,
                                int64_t first, int count, int64_t k0, int depth);

/* Packs for BFLOAT16 kernels with a `pack` for FLOAT kernels: floats are truncated to their upper half. */
gemm_pack_composed gemm_pack_halved;

/* Packs groups of 64 bytes, the layout of A for AMX, with a `pack` for BFLOAT16 kernels in groups of B. */
gemm_pack_composed gemm_pack_grouped;

#endif
