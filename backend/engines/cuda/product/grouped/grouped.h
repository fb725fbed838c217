/* SPDX-License-Identifier: Apache-2.0 */
/* The grouped products: what the portable family and that of Hopper share. Which rows are whose is known on the device
   alone, so grids cover the worst case. Forward, product/grouped/tile_list.cuh first lists tiles of rows, none of two
   experts; to the weights each expert is a batch entry. */
#ifndef WEFT_ENGINES_CUDA_GROUPED_H
#define WEFT_ENGINES_CUDA_GROUPED_H

#include "engines/cuda/product/contraction.h"
#include "graph/ops/moe.h"

/* A kernel's product: C[row, column] = sum over k of A[row, k] * B[k, column]. */
struct grouped {
    struct contraction c;         /* types, tile and operands; no modes */
    const struct moe_op *forward; /* NULL: the gradient of the weights */
    const struct tensor *offset, *y;
    int64_t experts, group_rows;          /* that the experts share */
    int64_t rows, columns, k_count, most; /* of a batch entry; entries at most */
    int a_dims[2], b_dims[2];             /* the tensor's dims that are the operand's own index and k */
    bool lead_is_row;
    int64_t copies; /* forward: bytes of gathered rows behind the list; 0: rows are read where they are */
};

/* The product of a region, without tile and access; NOT_SUPPORTED and a sentence where there is none. */
weftStatus_t grouped_find(struct grouped *g, const struct region *region, const struct device *device);
/* Forward: tiles of so many rows, and how many there are at most. */
void grouped_set_rows(struct grouped *g, int64_t rows);
/* How many neighbours along a dimension one access takes: every row of them is whole and begins aligned. */
int grouped_run_along(const struct tensor *tensor, int dim);
/* What product/grouped/groups.cuh reads, and the result. */
void grouped_emit(struct kernel_source *source, const struct grouped *g);
/* Forward: the kernel that lists the tiles and copies rows, and the workspace it writes: the list, then the rows. */
weftStatus_t grouped_build_list(struct cuda_kernel *kernel, const struct grouped *g, struct arena *arena);
int64_t grouped_list_bytes(const struct grouped *g);

#endif
