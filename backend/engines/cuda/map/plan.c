/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a sweep: a region's operands in one space, runs, tiles. */
#include "base/number.h"
#include "engines/cuda/core/formula.h"
#include "engines/cuda/map/map.h"
#include "graph/ops/concat.h"
#include "graph/ops/reshape.h"
#include "graph/ops/slice.h"
#include "graph/ops/transpose.h"

#include <string.h>

enum { SHORT_RUN = 2 }; /* elements of an access above which flat spaces are not considered */

static bool is_op(const struct node *node, const struct op *op) { return op_of(node->op) == op; }

static const struct tensor *tensor_at(const struct map *map, int value) {
    return map->region->graph->values[value].tensor;
}

/* ---- Contents of a region ---------------------------------------------------------------------------------------- */

/* The result whose dims and memory order determine the space: the one with the most elements that is read outside the
   region, the first of equals. A region without such a result uses its first output. -1: the region has no output at
   all. */
static int leading_value(const struct region *region) {
    int leading = -1;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            int value = node->operands[k];
            if (!node->is_output[k] || (leading >= 0 && !region_exports(region, value)))
                continue;
            if (leading < 0 || !region_exports(region, leading) ||
                tensor_elements(region->graph->values[value].tensor) >
                    tensor_elements(region->graph->values[leading].tensor))
                leading = value;
        }
    }
    return leading;
}

/* The movement node that produces a value inside the region, or NULL. Such a value is loaded from its source's memory
   with other strides. */
static const struct node *movement_of(const struct region *region, int value) {
    if (!region_makes(region, value))
        return NULL;
    const struct node *node = &region->graph->nodes[region->graph->values[value].producer];
    return is_op(node, &transpose_op) || is_op(node, &slice_op) || is_op(node, &reshape_op) ? node : NULL;
}

/* True if a movement node of the region reads a value. */
bool map_moves(const struct region *region, int value) {
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++)
            if (node->operands[k] == value && !node->is_output[k] && !node_is_pointwise(node))
                return true;
    }
    return false;
}

/* The source of a moved tensor as an operand over the moved tensor's own dims. Returns the value whose memory is read.
   A reshape that is not logical keeps y's strides, as x's memory is y's. `operand` has no strides yet. */
static int movement_strides(const struct node *node, struct operand *operand) {
    if (is_op(node, &transpose_op)) {
        const struct transpose_op *op = (const struct transpose_op *)node->op;
        for (int64_t i = 0; i < op->y->dims.count; i++)
            operand->strides[i] = op->x->strides.at[op->permutation.at[i]];
    } else if (is_op(node, &slice_op)) {
        const struct slice_op *op = (const struct slice_op *)node->op;
        for (int64_t i = 0; i < op->y->dims.count; i++) {
            operand->offset += op->start.at[i] * op->x->strides.at[i];
            operand->strides[i] = op->x->strides.at[i] * slice_step(op, i);
        }
    } else {
        const struct reshape_op *op = (const struct reshape_op *)node->op;
        /* For a logical reshape x is packed: the order of elements is that of y's dims. */
        int64_t packed = 1;
        for (int64_t i = op->y->dims.count; i-- > 0; packed *= op->y->dims.at[i])
            operand->strides[i] = op->mode == WEFT_RESHAPE_LOGICAL ? packed : op->y->strides.at[i];
    }
    return node->operands[node->is_output[0] ? 1 : 0];
}

bool map_is_index(const struct node *node) {
    return node_is_pointwise(node) && ((const struct pointwise_op *)node->op)->pw->mode == WEFT_POINTWISE_GEN_INDEX;
}

/* The value of GEN_INDEX: an operand without memory, whose offset is the coordinate. */
static weftStatus_t add_index(struct map *map, const struct node *node) {
    if (map->count == MAP_OPERANDS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would have more than %d operands", MAP_OPERANDS_MAX);
    struct operand *operand = &map->operands[map->count++];
    *operand = (struct operand){.value = node->operands[node->is_output[0] ? 0 : 1], .memory = -1};
    operand->strides[((const struct pointwise_op *)node->op)->pw->axis] = 1;
    return WEFT_STATUS_SUCCESS;
}

/* Adds each value once, however many nodes read it; a value that is updated in place is both loaded and stored. */
static weftStatus_t add_operand(struct map *map, int value, bool is_store) {
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].value == value && map->operands[k].is_store == is_store)
            return WEFT_STATUS_SUCCESS;
    if (map->count == MAP_OPERANDS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would have more than %d operands", MAP_OPERANDS_MAX);
    operand_of_tensor(&map->operands[map->count++], map->region->graph, value, &map->space, is_store);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Supported regions ------------------------------------------------------------------------------------------- */

/* Outputs have all dims, because many threads would store a broadcast one. Inputs of one element or with dims of 1
   broadcast. */
static weftStatus_t check_shape(const struct map *map, const struct descriptor *op, const struct tensor *tensor,
                                bool is_output) {
    bool fits = tensor->vector_count == 1 &&
                ((tensor_elements(tensor) == 1 && !is_output) || tensor->dims.count == map->space.rank);
    for (int64_t i = 0; fits && i < tensor->dims.count && tensor->dims.count == map->space.rank; i++)
        fits = tensor->dims.at[i] == map->space.extents[i] || (tensor->dims.at[i] == 1 && !is_output);
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s, this sweep goes over %s", descriptor_label(op),
             descriptor_label(&tensor->base), tensor_dims_text(tensor),
             numbers_text(map->space.extents, map->space.rank));
    if (!cuda_element_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
             descriptor_label(op), descriptor_label(&tensor->base), dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_movement(const struct map *map, const struct node *node) {
    const struct tensor *x = tensor_at(map, node->operands[0]), *y = tensor_at(map, node->operands[1]);
    if (region_makes(map->region, node->operands[0]))
        /* A value in the registers of one thread cannot be read by another. */
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s moves a value that this sweep computes; it needs a separate sweep", descriptor_label(node->op));
    if (x->vector_count != 1 || !cuda_element_name((weftDataType_t)x->type) || x->type != y->type)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: x is vectorised, or of a type that kernels cannot store",
             descriptor_label(node->op));
    if (is_op(node, &reshape_op) && ((const struct reshape_op *)node->op)->mode == WEFT_RESHAPE_LOGICAL &&
        !tensor_is_packed(x))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: x with strides %s is not packed", descriptor_label(node->op),
             numbers_text(x->strides.at, x->strides.count));
    return check_shape(map, node->op, y, true);
}

/* Pointwise operations need a formula; all operands need a type that kernels support. */
static weftStatus_t check_node(const struct map *map, const struct node *node) {
    if (is_op(node, &transpose_op) || is_op(node, &slice_op) || is_op(node, &reshape_op))
        return check_movement(map, node);
    if (!node_is_pointwise(node))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is neither pointwise nor data movement",
             descriptor_label(node->op));
    TRY(formula_accepts(node->op));
    for (int k = 0; k < node->operand_count; k++)
        TRY(check_shape(map, node->op, tensor_at(map, node->operands[k]), node->is_output[k]));
    return WEFT_STATUS_SUCCESS;
}

/* The leading store is operand 0, whose memory order determines the space's. A moved value is loaded under its own
   number from another value's memory. */
static weftStatus_t add_operands(struct map *map, const struct region *region) {
    const struct graph *graph = region->graph;
    int lead = leading_value(region);
    const struct tensor *tensor = graph->values[lead].tensor;
    map->space.rank = (int)tensor->dims.count;
    memcpy(map->space.extents, tensor->dims.at, sizeof map->space.extents);
    for (int i = 0; i < region->count; i++)
        TRY(check_node(map, region_node(region, i)));
    TRY(add_operand(map, lead, true));
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        if (map_is_index(node))
            TRY(add_index(map, node));
        for (int k = 0; k < node->operand_count; k++) {
            int value = node->operands[k];
            bool is_store = node->is_output[k] && region_exports(region, value);
            bool is_load = !node->is_output[k] && node_is_pointwise(node) && !map_is_index(node);
            if (is_store || (is_load && !region_makes(region, value)))
                TRY(add_operand(map, value, is_store));
            /* operand_of_tensor gave it the strides of y, which is not in memory unless it is stored. */
            if (node->is_output[k] && movement_of(region, value)) {
                TRY(add_operand(map, value, false));
                struct operand *operand = &map->operands[map->count - 1];
                memset(operand->strides, 0, sizeof operand->strides);
                operand->memory = movement_strides(node, operand);
            }
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* True for types narrower than a byte. */
bool map_shares_bytes(const struct map *map) {
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].is_store && !cuda_type_name(map->operands[k].type))
            return true;
    return false;
}

/* No two threads may store to one byte. Elements narrower than a byte share one; runs that begin and end at byte
   boundaries keep threads separate. */
static weftStatus_t check_bytes(const struct map *map) {
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        bool is_whole = operand->strides[map->space.rank - 1] == 1 && map->run * dtype_of(operand->type)->bits % 8 == 0;
        if (operand->is_store && !is_whole && !cuda_type_name(operand->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: runs of %d elements do not fill whole bytes of it",
                 descriptor_label(&tensor_at(map, operand->value)->base), map->run);
    }
    return WEFT_STATUS_SUCCESS;
}

/* The dim along which an operand is contiguous, if it is not the last; -1: none, or it cannot be staged. Stores are
   never staged: the space follows the memory of the leading result. */
static int axis_across(const struct map *map, const struct operand *operand) {
    int last = map->space.rank - 1;
    if (operand->is_store || operand->memory < 0 || operand->strides[last] <= 1 || !cuda_type_name(operand->type))
        return -1;
    for (int i = 0; i < last; i++)
        if (operand->strides[i] == 1)
            return i;
    return -1;
}

/* Rows of odd lengths allow only short runs, unless dense operands are swept as one row. Tiled spaces are not swept
   flat: tiles gain more. */
static void find_flat(struct map *map) {
    /* Coordinates of an index would have to be computed per element, and staged operands use tiles. */
    bool is_possible = true;
    map->is_flat = map->space.rank == 1;
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        is_possible = is_possible && operand->memory >= 0 && axis_across(map, operand) < 0 &&
                      (!operand->is_store || operand_is_dense(&map->space, operand));
    }
    /* 1: no gain. */
    int flat = is_possible ? space_flat_length(&map->space, map->operands, map->count, map->region->graph) : 1;
    /* Detecting the end of a row costs instructions per access, which pays off only if accesses get much longer. */
    if (map->run > SHORT_RUN || flat <= 2 * map->run)
        return;
    map->is_flat = true;
    map->run = flat;
}

weftStatus_t map_analyse(struct map *map, const struct region *region) {
    *map = (struct map){.region = region};
    /* Strides first, for the original dims; then dims that all operands step through alike are merged, which makes
       vectors longer. */
    TRY(add_operands(map, region));
    space_coalesce(&map->space, map->operands, map->count, 0);
    map->run = space_run_length(&map->space, map->operands, map->count, region->graph);
    find_flat(map);
    return check_bytes(map);
}

/* ---- Choosing tiles and launches -------------------------------------------------------------------------------- */

enum {
    SHORT_ROW_BYTES = 512,       /* maximum size of a row that is copied together with adjacent ones */
    TILE_BYTES = 16384,          /* tile size of all staged operands together */
    TILE_BYTES_MIN = 4096,       /* below this, tiles are not halved to occupy more multiprocessors */
    LINE_BYTES = 128,            /* cache line: each side of a tile should be whole lines */
    STAGED_BYTES_MAX = 46 << 10, /* maximum for staged operands, out of the 48 KiB of shared memory that a block has
                                    without opting in */
    TILE_UNIT = 16,              /* in elements: a multiple of every vector */
    BLOCKS_AT_ONCE = 8
};

/* The smallest power of two that is at least the number. */
static int64_t power_of_two_from(int64_t number) {
    int64_t power = 1;
    while (power < number)
        power *= 2;
    return power;
}

/* The side of a tile: an even share of an extent, at most `most` elements. All runs divide TILE_UNIT. Short extents are
   rounded up to a power of two, which runs divide. */
static int64_t side_of(int64_t extent, int64_t most) {
    if (extent < TILE_UNIT)
        return power_of_two_from(extent);
    most = most < TILE_UNIT ? TILE_UNIT : most / TILE_UNIT * TILE_UNIT;
    int64_t parts = divide_up(extent, most), part = divide_up(extent, parts);
    return round_up(part, TILE_UNIT);
}

/* True if a region only moves elements, or copies them without rounding. Integers of 32 bits and more go through i64
   formulas and are not plain copies here; halves and floats are, because identity rounds nothing. */
static bool is_copy(const struct map *map) {
    const struct node *node = region_node(map->region, 0);
    weftDataType_t type = map->operands[0].type;
    if (map->region->count > 1 || map->count != 2 || map->operands[1].is_store || map->operands[1].memory < 0 ||
        map->operands[1].type != type || !cuda_type_name(type))
        return false;
    if (!node_is_pointwise(node))
        return true;
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    return op->pw->mode == WEFT_POINTWISE_IDENTITY && op->alpha1 == 1 &&
           (type == WEFT_DATA_INT8 || type == WEFT_DATA_UINT8 ||
            (dtype_is_float(type) && dtype_is_float(pointwise_math(op))));
}

/* True if an operand of a transpose begins, in all rows of all tiles, at multiples of `each` elements, so that chunks
   of 16 bytes need no shifting. It is contiguous along `dim`, rows of a tile are along `other`, and `steps` of them are
   accessed at a time if they are merged into one. */
static bool begins_at(const struct map *map, const struct operand *operand, int dim, int other, int64_t steps,
                      int64_t each) {
    int64_t alignment = map->region->graph->values[operand->memory].tensor->alignment;
    bool begins = alignment % 16 == 0 && operand->offset % each == 0;
    for (int i = 0; i < map->space.rank; i++)
        begins = begins && (i == dim || operand->strides[i] * (i == other ? steps : 1) % each == 0);
    return begins;
}

/* The side of a transpose's tile: whole cache lines, an even share of an extent, at most `most` elements. `line`:
   elements per line. */
static int64_t lines_of(int64_t extent, int64_t line, int64_t most) {
    if (extent < line)
        return side_of(extent, extent);
    int64_t lines = divide_up(extent, line), each = most / line > 0 ? most / line : 1;
    int64_t parts = divide_up(lines, each);
    return divide_up(lines, parts) * line;
}

/* The tile of a copy whose rows are not, or only partly, suited to 16-byte accesses. Short rows that are contiguous in
   memory are merged into one. `area`: approximate elements of a tile. Leaves is_transpose false if the tiles of
   map_tiled.cuh suffice: their accesses are full already, or the region computes. */
static void find_transpose(struct map *map, int64_t area) {
    struct map_tile *tile = &map->tile;
    const struct operand *to = &map->operands[0], *from = &map->operands[1];
    int last = map->space.rank - 1;
    /* Elements of a chunk; extents along the source's memory and along the result's. */
    int64_t each = 16 / dtype_bytes(to->type, 1), across = map->space.extents[tile->axis],
            along = map->space.extents[last];
    if (!is_copy(map) || to->strides[last] != 1 || (tile->width[1] >= each && map->run >= each))
        return;
    /* Rows of the source without gaps between them, at most 512 bytes long. */
    bool is_short = from->strides[last] == across && across <= SHORT_ROW_BYTES / 16 * each;
    tile->is_flat_to = to->strides[tile->axis] == along && along <= SHORT_ROW_BYTES / 16 * each;
    /* rows that are not a multiple of chunks stay whole */
    if (is_short && tile->is_flat_to && across * along > 2 * area) {
        is_short = across % each != 0;
        tile->is_flat_to = !is_short;
    }
    if (!tile->is_flat_to && along < TILE_UNIT)
        return;
    tile->is_transpose = true;
    int64_t line = LINE_BYTES / 16 * each, extent = tile->is_flat_to ? along : is_short ? across : 1;
    tile->is_flat_from = is_short && across <= line; /* longer rows are padded, which avoids bank conflicts */
    area /= 2;
    bool begins = tile->is_flat_to || to->strides[tile->axis] % each == 0; /* otherwise half a line more is read */
    line = begins && area / extent < line ? line / 2 : line;
    tile->along_last = tile->is_flat_to ? along : lines_of(along, line, line);
    tile->along_axis = is_short ? across : lines_of(across, line, area / tile->along_last);
    if (!tile->is_flat_to)
        tile->along_last = lines_of(along, line, area / tile->along_axis);
    if (!tile->is_flat_to && tile->along_last < along) /* a sector belongs to one tile */
        tile->along_last = round_up(tile->along_last, 2 * each);
    int64_t rows_from = tile->is_flat_from ? tile->along_last : 1, rows_to = tile->is_flat_to ? tile->along_axis : 1;
    tile->shifts_from = !begins_at(map, from, tile->axis, last, rows_from, each);
    tile->shifts_to = !begins_at(map, to, last, tile->axis, rows_to, each);
}

/* For use before a tile is chosen, which requires the device; afterwards, tile.axis is set. */
bool map_is_tiled(const struct map *map) {
    for (int k = 0; k < map->count; k++)
        if (axis_across(map, &map->operands[k]) >= 0)
            return true;
    return false;
}

/* Tiles are worthwhile if an operand is transposed; the largest type determines along which axis. Tiles are halved
   until there are four per multiprocessor, or they reach TILE_BYTES_MIN. Operands that do not fit in shared memory
   are loaded directly, with strides. */
static void find_tile(struct map *map, const struct device *device) {
    struct map_tile *tile = &map->tile;
    const int64_t *extents = map->space.extents;
    int last = map->space.rank - 1;
    int64_t bytes = 0, shared = 0;
    tile->axis = -1;
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        int axis = axis_across(map, operand);
        if (axis >= 0 && dtype_bytes(operand->type, 1) > bytes) {
            tile->axis = axis;
            bytes = dtype_bytes(operand->type, 1);
        }
    }
    if (tile->axis < 0)
        return;
    for (int k = 0; k < map->count; k++)
        if (axis_across(map, &map->operands[k]) == tile->axis)
            tile->width[k] = operand_run_length(&map->space, &map->operands[k], tile->axis, map->region->graph);
    /* `bytes`: size of an element of the largest staged type. */
    int64_t area = TILE_BYTES / bytes, tiles = 4 * (int64_t)device->cuda.multiprocessors;
    while (area > TILE_BYTES_MIN / bytes && space_elements(&map->space) < area * tiles)
        area /= 2;
    find_transpose(map, area);
    if (tile->is_transpose)
        return;
    /* Whole lines are written, longer ones read; if one dim is short, the other gets more. */
    tile->along_last = side_of(extents[last], LINE_BYTES / bytes);
    tile->along_axis = side_of(extents[tile->axis], area / tile->along_last);
    tile->along_last = side_of(extents[last], area / tile->along_axis);
    for (int k = 0; k < map->count; k++) {
        /* One additional element per row moves adjacent rows to other banks. */
        int64_t row = (tile->along_axis + 1) * dtype_bytes(map->operands[k].type, 1) + 8,
                needs = row * tile->along_last;
        shared += tile->width[k] ? needs : 0;
        if (shared > STAGED_BYTES_MAX && tile->width[k]) {
            shared -= needs;
            tile->width[k] = 0;
        }
    }
}

/* Each coordinate of the dims that tiles do not cover has its own tiles. */
int64_t map_tiles(const struct map *map) {
    int64_t tiles = 1;
    for (int i = 0; i < map->space.rank; i++) {
        int64_t step = i == map->tile.axis ? map->tile.along_axis : i == map->space.rank - 1 ? map->tile.along_last : 1;
        tiles *= divide_up(map->space.extents[i], step);
    }
    return tiles;
}

/* Number of runs that a thread has in flight: more of short ones, fewer if that would leave multiprocessors idle, and
   one if that is all a thread reads, because more threads are better than more loads. Halved until all multiprocessors
   have two full blocks. */
static int choose_unroll(const struct map *map, const struct device *device) {
    int64_t widest = 0, threads = (int64_t)device->cuda.multiprocessors * MAP_THREADS;
    int loads = 0, unroll;
    for (int k = 0; k < map->count; k++) {
        bool is_run = map->operands[k].memory >= 0 && map->operands[k].strides[map->space.rank - 1];
        /* Broadcast along the run, an operand is one element and is not counted. */
        int64_t bytes = is_run ? dtype_bytes(map->operands[k].type, map->run) : 0;
        widest = bytes > widest ? bytes : widest;
        loads += is_run && !map->operands[k].is_store;
    }
    unroll = widest >= 16 || loads > 4 ? 2 : widest >= 4 ? 4 : 8;
    if (widest >= 16 && loads == 1)
        unroll = 1;
    while (unroll > 1 && map_runs(map) < threads * unroll * 2)
        unroll /= 2;
    return unroll;
}

/* True if this number of blocks is resident at once. Smaller inputs arrive soon anyway, or are in L2. Requires sm_90,
   where kernels can start before the preceding ones end. */
static bool expects(int64_t blocks, const struct device *device) {
    int64_t each = blocks / device->cuda.multiprocessors;
    return device->cuda.major >= 9 && each > 2 && each < BLOCKS_AT_ONCE;
}

/* If there are more tiles than a grid allows, falls back to a plain sweep, whose blocks loop. */
int64_t map_choose(struct map *map, const struct device *device) {
    map->unroll = choose_unroll(map, device);
    find_tile(map, device);
    if (map->tile.axis >= 0 && map_tiles(map) > INT32_MAX)
        map->tile = (struct map_tile){.axis = -1};
    bool is_tiled = map->tile.axis >= 0;
    int64_t blocks = is_tiled ? map_tiles(map) : divide_up(map_runs(map), (int64_t)MAP_THREADS * map->unroll);
    /* CUDA's limit along x; blocks loop with the grid's stride. */
    blocks = min64(blocks, INT32_MAX);
    map->expects = !is_tiled && expects(blocks, device);
    return blocks;
}
