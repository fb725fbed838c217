/* SPDX-License-Identifier: Apache-2.0 */
/* The grouped products: shared by the portable family and that of Hopper. The rows of each expert are only known on the
   device, so grids cover the worst case. Forward, product/grouped/tile_list.cuh first lists tiles of rows, each of a
   single expert; for weight gradients each expert is a batch entry. */
#ifndef WEFT_ENGINES_CUDA_GROUPED_H
#define WEFT_ENGINES_CUDA_GROUPED_H

#include "engines/cuda/product/contraction.h"
#include "graph/ops/moe.h"

/* A kernel's product: C[row, column] = sum over k of A[row, k] * B[k, column]. */
struct grouped {
    struct contraction c;         /* types, tile and operands; no modes */
    const struct moe_op *forward; /* NULL: the weight gradient */
    const struct tensor *offset, *y;
    int64_t experts, group_rows;                 /* rows of all experts together */
    int64_t rows, columns, k_count, max_entries; /* size of a batch entry; maximum number of entries */
    int a_dims[2], b_dims[2];                    /* the tensor's dims of the operand's own index and of k */
    bool lead_is_row;
    int64_t copies; /* forward: bytes of gathered rows after the list; 0: rows are read in place */
};

/* Finds the product of a region, without tile and access; NOT_SUPPORTED, with a reason, if it has none. */
weftStatus_t grouped_find(struct grouped *g, const struct region *region, const struct device *device);
/* Forward: sets the rows per tile and the maximum number of tiles. */
void grouped_set_rows(struct grouped *g, int64_t rows);
/* Number of adjacent elements along a dimension per access, such that every row consists of whole aligned accesses. */
int grouped_run_along(const struct tensor *tensor, int dim);
/* Emits the result and the parameters of product/grouped/groups.cuh. */
void grouped_emit(struct kernel_source *source, const struct grouped *g);
/* Forward: builds the kernel that lists the tiles and copies rows. The workspace that it writes contains the list, then
   the rows. */
weftStatus_t grouped_build_list(struct cuda_kernel *kernel, const struct grouped *g, struct arena *arena);
int64_t grouped_list_bytes(const struct grouped *g);

#endif
