/* SPDX-License-Identifier: Apache-2.0 */
/* Index spaces: built from tensors, ordered and merged so that kernels loop over as few dimensions as memory layouts
   allow. */
#include "engines/cuda/core/operand.h"
#include "base/number.h"

/* In elements: 16 bytes of the smallest addressable type. */
enum { RUN_MAX = 16 };

/* A tensor of one element broadcasts for any rank: it may have fewer dims than the space, and is not indexed by
   them. */
void operand_of_tensor(struct operand *operand, const struct graph *graph, int value, const struct space *space,
                       bool is_store) {
    const struct tensor *tensor = graph->values[value].tensor;
    *operand =
        (struct operand){.value = value, .memory = value, .is_store = is_store, .type = (weftDataType_t)tensor->type};
    bool scalar = tensor_elements(tensor) == 1;
    for (int i = 0; i < space->rank && !scalar; i++)
        operand->strides[i] = tensor->dims.at[i] == 1 ? 0 : tensor->strides.at[i];
}

/* Returns 1 for a space without dims. */
int64_t space_elements(const struct space *space) {
    int64_t elements = 1;
    for (int i = 0; i < space->rank; i++)
        elements *= space->extents[i];
    return elements;
}

/* Changes the order of positions, but not the set. */
static void swap_dims(struct space *space, struct operand *operands, int count, int a, int b) {
    int64_t extent = space->extents[a];
    space->extents[a] = space->extents[b];
    space->extents[b] = extent;
    for (int k = 0; k < count; k++) {
        int64_t stride = operands[k].strides[a];
        operands[k].strides[a] = operands[k].strides[b];
        operands[k].strides[b] = stride;
    }
}

/* Removes a dim of extent 1, or one that was merged with the next one. */
static void remove_dim(struct space *space, struct operand *operands, int count, int dim) {
    space->rank--;
    for (int i = dim; i < space->rank; i++) {
        space->extents[i] = space->extents[i + 1];
        for (int k = 0; k < count; k++)
            operands[k].strides[i] = operands[k].strides[i + 1];
    }
}

/* True if dims `dim` and the next one are a single dim to all operands. Broadcasting along both (strides 0 and 0)
   merges too; broadcasting along only one never does. */
static bool merges(const struct space *space, const struct operand *operands, int count, int dim) {
    for (int k = 0; k < count; k++)
        if (operands[k].strides[dim] != operands[k].strides[dim + 1] * space->extents[dim + 1])
            return false;
    return true;
}

/* Sorting and merging change the order of positions, never the set. Dims of extent 1, whose strides have no meaning,
   are removed first, except the last one left, because a space has at least rank 1. The stable insertion sort suits
   ranks of at most WEFT_DIM_MAX. Merging runs from the last dim forwards, so that merged dims can merge again. */
void space_coalesce(struct space *space, struct operand *operands, int count, int lead) {
    for (int i = space->rank; i-- > 0;)
        if (space->extents[i] == 1 && space->rank > 1)
            remove_dim(space, operands, count, i);
    for (int i = 1; i < space->rank; i++)
        for (int at = i; at > 0 && operands[lead].strides[at - 1] < operands[lead].strides[at]; at--)
            swap_dims(space, operands, count, at - 1, at);
    for (int i = space->rank - 1; i-- > 0;)
        if (merges(space, operands, count, i)) {
            space->extents[i + 1] *= space->extents[i];
            remove_dim(space, operands, count, i);
        }
}

/* The largest power of two, at most `length`, to which an operand is aligned wherever a run along `dim` may begin. */
static int64_t common_length(const struct space *space, const struct operand *operand, int dim, int64_t length) {
    length = gcd64(length, operand->offset);
    for (int i = 0; i < space->rank; i++)
        length = i == dim ? length : gcd64(length, operand->strides[i]);
    return length;
}

/* Returns the number of elements in an aligned access of up to 16 bytes. */
static int64_t elements_per_access(const struct operand *operand, const struct graph *graph) {
    int64_t bits = gcd64(graph->values[operand->memory].tensor->alignment, 16) * 8;
    int64_t fits = bits / dtype_of(operand->type)->bits;
    return fits > 1 ? fits : 1;
}

int operand_run_length(const struct space *space, const struct operand *operand, int dim, const struct graph *graph) {
    /* Every row begins aligned only if the extent is a multiple, too. The gcd of a power of two and any number is a
       power of two. */
    int64_t length = gcd64(elements_per_access(operand, graph), space->extents[dim]);
    return (int)common_length(space, operand, dim, length);
}

bool operand_is_dense(const struct space *space, const struct operand *operand) {
    int64_t packed = 1;
    for (int i = space->rank; i-- > 0; packed *= space->extents[i])
        if (operand->memory < 0 || operand->strides[i] != packed)
            return false;
    return true;
}

/* The longest run, of up to `length`, that the operand's alignment allows; at least `byte` elements. Wide types take
   several accesses per run, which their alignment must allow. */
static int64_t limit_length(int64_t length, const struct operand *operand, int64_t byte, const struct graph *graph) {
    int64_t fits = elements_per_access(operand, graph);
    bool is_aligned = graph->values[operand->memory].tensor->alignment >= 16;
    return gcd64(length, is_aligned && fits < byte ? byte : fits);
}

/* Returns the number of elements of the smallest type per byte. */
static int64_t elements_per_byte(const struct operand *operands, int count) {
    int64_t most = 1;
    for (int k = 0; k < count; k++) {
        int64_t fills = operands[k].memory < 0 ? 1 : 8 / gcd64(dtype_of(operands[k].type)->bits, 8);
        most = fills > most ? fills : most;
    }
    return most;
}

int space_run_length(const struct space *space, const struct operand *operands, int count, const struct graph *graph) {
    int last = space->rank - 1;
    int64_t length = last ? gcd64(RUN_MAX, space->extents[last]) : RUN_MAX;
    for (int k = 0; k < count; k++) {
        /* Coordinates, and operands that broadcast or are strided along the run, are accessed element by element. */
        if (operands[k].memory < 0 || operands[k].strides[last] != 1)
            continue;
        length = limit_length(length, &operands[k], elements_per_byte(operands, count), graph);
        length = common_length(space, &operands[k], last, length);
    }
    return (int)length;
}

/* Dense operands have no rows: only their offset counts. */
int space_flat_length(const struct space *space, const struct operand *operands, int count, const struct graph *graph) {
    int64_t length = RUN_MAX;
    for (int k = 0; k < count; k++)
        if (operand_is_dense(space, &operands[k]))
            length = gcd64(limit_length(length, &operands[k], elements_per_byte(operands, count), graph),
                           operands[k].offset);
    return (int)length;
}
