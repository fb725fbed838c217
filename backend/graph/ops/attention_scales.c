/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup and validation of the scales of attention's operands: one number for the whole tensor, per batch entry or per
   head, or one per block of 32 elements along D or along S, plain or in tiles. Operands are [B, H, S, D]; the extents
   of the scales determine the kind. */
#include "graph/ops/attention_scales.h"
#include "base/number.h"
#include "graph/ops/block_scale.h"

/* The last two extents of block scales along D, or along S. */
static void block_extents(int64_t extents[2], const struct tensor *operand, bool is_along_rows, bool are_tiled) {
    enum { ROWS, COLUMNS };
    int64_t rows = operand->dims.at[2], columns = operand->dims.at[3];
    extents[ROWS] = is_along_rows ? divide_up(rows, ATTENTION_SCALE_BLOCK) : rows;
    extents[COLUMNS] = is_along_rows ? columns : divide_up(columns, ATTENTION_SCALE_BLOCK);
    /* Dimensions are rounded up to whole tiles. The four columns of a tile are blocks, its 128 rows the other
       dimension. */
    if (are_tiled) {
        extents[is_along_rows ? COLUMNS : ROWS] = round_up(extents[is_along_rows ? COLUMNS : ROWS], SCALE_TILE_ROWS);
        extents[is_along_rows ? ROWS : COLUMNS] = round_up(extents[is_along_rows ? ROWS : COLUMNS], SCALE_TILE_COLUMNS);
    }
}

/* True if scales have the extents of blocks along this dimension; leading dimensions are checked elsewhere. */
static bool has_extents(const struct tensor *scales, const struct tensor *operand, bool is_along_rows) {
    int64_t extents[2];
    block_extents(extents, operand, is_along_rows, scale_is_tiled(scales));
    bool are_rows = is_along_rows && !scale_is_tiled(scales) && operand->dims.at[3] == 1; /* not blocks, but one scale
                                                                                             per row */
    return scales->dims.count == 4 && scales->dims.at[2] == extents[0] && scales->dims.at[3] == extents[1] && !are_rows;
}

/* Blocks of one element each way, with are_blocks false, if the scales are per head or coarser. */
struct attention_blocks attention_blocks_of(const struct tensor *scales, const struct tensor *operand) {
    struct attention_blocks blocks = {.rows = 1, .columns = 1};
    bool are_tiled = scale_is_tiled(scales);
    bool is_of_head = scales->dims.at[2] == 1 && scales->dims.at[3] == 1;
    if (!are_tiled && is_of_head)
        return blocks;
    /* If both would fit, blocks are assumed to run along D. */
    bool is_along_columns = has_extents(scales, operand, false);
    blocks.are_blocks = is_along_columns || has_extents(scales, operand, true);
    if (!blocks.are_blocks)
        return blocks;
    blocks.rows = is_along_columns ? 1 : ATTENTION_SCALE_BLOCK;
    blocks.columns = is_along_columns ? ATTENTION_SCALE_BLOCK : 1;
    blocks.are_tiled = are_tiled;
    /* Number of tiles per row of tiles. */
    blocks.tiles = scales->dims.at[is_along_columns ? 3 : 2] / SCALE_TILE_COLUMNS;
    return blocks;
}

/* Offset from the first scale, in elements; `index` is [b, h, s, d] of the operand. Extents of 1 broadcast. */
int64_t attention_scale_offset(const struct view *scales, const struct attention_blocks *blocks,
                               const int64_t index[4]) {
    int64_t row = index[2] / blocks->rows, column = index[3] / blocks->columns;
    if (!blocks->are_tiled)
        return view_offset(scales, (const int64_t[]){index[0], index[1], row, column});
    /* The columns of a tile are blocks, regardless of the dimension that blocks run along. */
    int64_t line = blocks->rows > 1 ? column : row, block = blocks->rows > 1 ? row : column;
    return view_offset(scales, (const int64_t[]){index[0], index[1], 0, 0}) +
           scale_tile_offset(line, block, blocks->tiles);
}

/* The message lists both shapes that would have been legal. */
static weftStatus_t refuse_blocks(const struct descriptor *op, const char *key, const struct tensor *scales,
                                  const struct tensor *operand) {
    int64_t along[2][4];
    for (int i = 0; i < 2; i++) {
        along[i][0] = operand->dims.at[0], along[i][1] = operand->dims.at[1];
        block_extents(along[i] + 2, operand, i == 1, scale_is_tiled(scales));
    }
    FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
         "%s: %s%s has dims %s; for blocks of 32 elements of %s, expected %s along its last dimension, or %s along the "
         "one before. Use one of these.",
         descriptor_label(op), key, scale_is_tiled(scales) ? ", in tiles (F8_128x4)," : "", tensor_dims_text(scales),
         tensor_dims_text(operand), numbers_text(along[0], 4), numbers_text(along[1], 4));
}

/* Whole tiles have no gaps. Which of their dims has stride 1 does not matter, because tiles have an internal order. */
static weftStatus_t check_tiles(const struct descriptor *op, const char *key, const struct tensor *scales) {
    const int64_t *dims = scales->dims.at, *strides = scales->strides.at;
    if ((strides[3] == 1 && strides[2] == dims[3]) || (strides[2] == 1 && strides[3] == dims[2]))
        return WEFT_STATUS_SUCCESS;
    FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
         "%s: %s has reordering_type F8_128x4, dims %s and strides %s. Tiles need the last two dims packed: one of "
         "stride 1, the other of its extent.",
         descriptor_label(op), key, tensor_dims_text(scales), numbers_text(strides, scales->strides.count));
}

/* Checks for blocks of a shape that fits the operand; batch entries and heads may share them. */
static weftStatus_t check_blocks(const struct descriptor *op, const char *key, const struct tensor *scales,
                                 const struct tensor *operand) {
    const int64_t *dims = scales->dims.at, *all = operand->dims.at;
    bool is_shared = (dims[0] == 1 || dims[0] == all[0]) && (dims[1] == 1 || dims[1] == all[1]);
    if (!attention_blocks_of(scales, operand).are_blocks || !is_shared)
        return refuse_blocks(op, key, scales, operand);
    return scale_is_tiled(scales) ? check_tiles(op, key, scales) : WEFT_STATUS_SUCCESS;
}

/* `dims`: number of leading dimensions along which scales may vary. `has_blocks`: whether this operand supports block
   scales. Accepts NULL. */
weftStatus_t attention_check_scales(const struct descriptor *op, const char *key, const struct tensor *scales,
                                    const struct tensor *operand, int dims, bool has_blocks) {
    if (!scales)
        return WEFT_STATUS_SUCCESS;
    struct tensor most = {.dims = {4, {1, 1, 1, 1}}};
    for (int i = 0; i < dims; i++)
        most.dims.at[i] = operand->dims.at[i];
    /* A last extent above 1, or tiles, can only be meant as blocks, so the message is about blocks. */
    bool means_blocks =
        has_blocks && scales->dims.count == 4 &&
        (scale_is_tiled(scales) || scales->dims.at[3] != 1 || attention_blocks_of(scales, operand).are_blocks);
    TRY(means_blocks ? check_blocks(op, key, scales, operand) : check_broadcasts(op, key, scales, &most));
    if (scale_is_tiled(scales) && !means_blocks)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s has reordering_type F8_128x4, which is for block scales. Set NONE (0).", descriptor_label(op),
             key);
    if (scales->ragged_offset)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s has ragged offsets. Give a padded tensor.", descriptor_label(op),
             key);
    if (dtype_is_integer((weftDataType_t)scales->type) || dtype_is_boolean((weftDataType_t)scales->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use a floating type.", descriptor_label(op), key,
             dtype_of((weftDataType_t)scales->type)->name);
    return WEFT_STATUS_SUCCESS;
}
