/* SPDX-License-Identifier: Apache-2.0 */
/* Emits the map family's kernels: how coordinates in the space are computed, and how a run of elements is loaded,
   computed and stored. The dims of the space are c0 .., the operands p0 .., in the order of struct map. */
#include "base/number.h"
#include "engines/cuda/core/formula.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/map/map.h"

#include <stdio.h>

/* The name of an argument, from the numbers of an operand and a dim; lives until the end of the expression. */
struct name {
    char text[32];
};

static struct name named(const char *format, int k, int dim) {
    struct name name;
    snprintf(name.text, sizeof name.text, format, k, dim);
    return name;
}

/* The dim along which runs are contiguous. */
static int last_of(const struct map *map) { return map->space.rank - 1; }

/* True for types narrower than a byte, which are addressed by element. */
static bool is_packed(const struct operand *operand) { return !cuda_type_name(operand->type); }

/* True for operands that go through shared memory, see struct map_tile. */
static bool is_staged(const struct map *map, int k) { return map->tile.axis >= 0 && map->tile.width[k]; }

/* True for operands that are read from memory: neither stored nor a coordinate. */
static bool is_loaded(const struct map *map, int k) {
    return !map->operands[k].is_store && map->operands[k].memory >= 0;
}

/* True if an operand is loaded element by element, because runs cross rows and it is not dense. Scalars need no
   coordinates and stay one load. */
static bool is_elementwise(const struct map *map, int k) {
    const struct operand *operand = &map->operands[k];
    bool is_scalar = true;
    for (int i = 0; i <= last_of(map); i++)
        is_scalar = is_scalar && operand->strides[i] == 0;
    return map->is_flat && last_of(map) > 0 && !is_scalar && !operand_is_dense(&map->space, operand);
}

/* True if a block reads one aligned segment of an operand, which can be prefetched as a whole. */
static bool is_expected(const struct map *map, int k) {
    const struct operand *operand = &map->operands[k];
    const struct tensor *tensor = operand->memory >= 0 ? map->region->graph->values[operand->memory].tensor : NULL;
    return is_loaded(map, k) && !is_packed(operand) && operand_is_dense(&map->space, operand) && !tensor->is_by_value &&
           !tensor->is_constant && tensor->alignment % 16 == 0 && dtype_bytes(operand->type, operand->offset) % 16 == 0;
}

/* Number of elements that a thread loads of an operand: one if it is broadcast along the run. */
static const char *loaded_count(const struct map *map, int k) {
    return map->operands[k].strides[last_of(map)] || is_elementwise(map, k) ? "N" : "1";
}

/* Strides are arguments, except 0 and 1 along the last dim, which are structure. An index has no memory, so its stride
   1 along the last dim is an argument as well. */
static bool has_stride(const struct map *map, int k, int dim) {
    const struct operand *operand = &map->operands[k];
    int64_t stride = operand->strides[dim];
    return stride > 1 || (stride == 1 && (dim != last_of(map) || operand->memory < 0));
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* Emits the fields of the arguments: addresses p<operand>, strides s<operand>_<dim> in elements. Offsets are included
   in the address if elements are whole bytes. */
static void emit_operands(struct kernel_source *source, const struct map *map) {
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        int64_t bytes = is_packed(operand) ? 0 : dtype_bytes(operand->type, operand->offset);
        if (operand->memory >= 0)
            emit_pointer(source, operand->type, operand->memory, bytes, named("p%d", k, 0).text);
        if (is_packed(operand) && operand->offset)
            emit_number(source, operand->offset, named("offset%d", k, 0).text);
        for (int i = 0; i <= last_of(map); i++)
            if (has_stride(map, k, i))
                emit_number(source, operand->strides[i], named("s%d_%d", k, i).text);
    }
}

/* Emits the address of an operand's element at the named coordinates. */
static void emit_address(struct text *code, const struct map *map, int k, const char *at) {
    const struct operand *operand = &map->operands[k];
    text_add(code, "a.p%d", k);
    if (is_packed(operand) && operand->offset)
        text_add(code, " + a.offset%d", k);
    for (int i = 0; i <= last_of(map); i++) {
        if (has_stride(map, k, i))
            text_add(code, " + %s.c%d * a.s%d_%d", at, i, k, i);
        else if (operand->strides[i])
            text_add(code, " + %s.c%d", at, i);
    }
}

/* The order in which coordinates are split off the number of a run or tile, and the step of each: tiles are counted
   along the last dim, then along the axis, then along the others. dims and steps have one entry per dim of the
   space. */
static void find_coordinates(const struct map *map, int *dims, int64_t *steps) {
    const struct map_tile *tile = &map->tile;
    int count = 0, last = last_of(map);
    dims[count++] = last;
    if (tile->axis >= 0)
        dims[count++] = tile->axis;
    for (int i = last; i-- > 0;)
        if (i != tile->axis)
            dims[count++] = i;
    for (int i = 0; i < count; i++)
        steps[i] = 1;
    steps[0] = tile->axis >= 0 ? tile->along_last : map->is_flat ? 1 : map->run;
    if (tile->axis >= 0)
        steps[1] = tile->along_axis;
}

/* Emits advance(): moves to the next element. Incrementing with carry is cheaper than a division per element. */
static void emit_advance(struct text *code, const struct map *map) {
    text_add(code, "DEVICE void advance(const arguments& a, coordinates& to) {\n");
    for (int i = last_of(map); i > 0; i--)
        text_add(code, "    if (++to.c%d < (i64)a.count%d.value) return;\n    to.c%d = 0;\n", i, i, i);
    text_add(code, "    to.c0++;\n}\n\n");
}

/* Emits struct coordinates; locate(), the coordinates of a run, or of the first element of a tile, by number; and
   element(), those of an element of a flat space. Sizes are arguments, so that other extents need no compilation. */
static void emit_locate(struct kernel_source *source, const struct map *map) {
    struct text *code = &source->code;
    int dims[WEFT_DIM_MAX], last = last_of(map);
    int64_t steps[WEFT_DIM_MAX], count = map->tile.axis >= 0 ? map_tiles(map) : map_runs(map);
    if (map->is_flat)
        count = space_elements(&map->space);
    /* 32-bit divisions are several times faster, and nearly all spaces are that small. */
    const char *type = index_type(count);
    find_coordinates(map, dims, steps);
    text_add(code, "struct coordinates { i64 c0");
    for (int i = 1; i <= last; i++)
        text_add(code, ", c%d", i);
    text_add(
        code,
        "; };\n\nDEVICE coordinates %s(const arguments& a, i64 at) {\n    coordinates to;\n    %s rest = (%s)at;\n",
        map->is_flat ? "element" : "locate", type, type);
    for (int i = 0; i <= last; i++) {
        int64_t extent = map->space.extents[dims[i]];
        text_add(code, "    to.c%d = (i64)", dims[i]);
        if (i < last) {
            emit_divisor(source, divide_up(extent, steps[i]), named("count%d", dims[i], 0).text);
            text_add(code, "split(rest, a.count%d)", dims[i]);
        } else {
            text_add(code, "rest");
        }
        text_add(code, steps[i] > 1 ? " * %lld;\n" : ";\n", (long long)steps[i]);
    }
    text_add(code, "    return to;\n}\n\n");
    if (map->is_flat)
        text_add(code, "DEVICE coordinates locate(const arguments& a, i64 at) { return element(a, at * RUN); }\n\n");
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* Loads all element-wise operands in one loop, because each step advances the coordinates. */
static void emit_element_loads(struct text *code, const struct map *map) {
    bool has_any = false;
    for (int k = 0; k < map->count; k++)
        has_any = has_any || (is_loaded(map, k) && is_elementwise(map, k));
    if (!has_any)
        return;
    text_add(code, "    coordinates at = to;\n    #pragma unroll\n    for (int e = 0; e < N; e++) {\n");
    for (int k = 0; k < map->count; k++)
        if (is_loaded(map, k) && is_elementwise(map, k)) {
            text_add(code, "        in.r%d.at[e] = load_run<%s, 1>(", k, cuda_element_name(map->operands[k].type));
            emit_address(code, map, k, "at");
            text_add(code, ").at[0];\n");
        }
    text_add(code, "        advance(a, at);\n    }\n");
}

/* Emits struct inputs and load_inputs(): the runs that a thread reads, all before it computes. N: RUN, or 1 for the
   rest of a flat space. */
static void emit_loads(struct text *code, const struct map *map) {
    text_add(code, "template <int N> struct inputs {\n");
    for (int k = 0; k < map->count; k++)
        if (is_loaded(map, k))
            text_add(code, "    run<%s, %s> r%d;\n", cuda_element_name(map->operands[k].type), loaded_count(map, k), k);
    text_add(
        code,
        "};\n\ntemplate <int N> DEVICE void load_inputs(inputs<N>& in, const arguments& a, const coordinates& to) {\n");
    for (int k = 0; k < map->count; k++) {
        const char *type = cuda_element_name(map->operands[k].type);
        if (!is_loaded(map, k) || is_staged(map, k) || is_elementwise(map, k))
            continue;
        /* Contiguous or constant along the run: one access. */
        if (!has_stride(map, k, last_of(map))) {
            text_add(code, "    in.r%d = load_run<%s, %s>(", k, type, loaded_count(map, k));
            emit_address(code, map, k, "to");
            text_add(code, ");\n");
        } else {
            text_add(code, "    #pragma unroll\n    for (int e = 0; e < N; e++) in.r%d.at[e] = load_run<%s, 1>(", k,
                     type);
            emit_address(code, map, k, "to");
            text_add(code, " + e * a.s%d_%d).at[0];\n", k, last_of(map));
        }
    }
    emit_element_loads(code, map);
    text_add(code, "}\n\n");
}

/* Emits expect_inputs(): prefetches the elements of dense operands that a block reads, starting with its first run. */
static void emit_expected(struct text *code, const struct map *map) {
    text_add(code, "DEVICE void expect(const void* p, u32 bytes);\n\n"
                   "DEVICE void expect_inputs(const arguments& a, const coordinates& to) {\n");
    for (int k = 0; k < map->count; k++)
        if (map->expects && is_expected(map, k)) {
            text_add(code, "    expect(");
            emit_address(code, map, k, "to");
            text_add(code, ", THREADS * UNROLL * RUN * %d);\n", (int)dtype_bytes(map->operands[k].type, 1));
        }
    text_add(code, "}\n\n");
}

/* Emits the coordinate as a value; along the last dim, element e of a run adds e. */
static void emit_index(struct text *code, const struct map *map, int k) {
    text_add(code, "        const i64 v%d = 0", map->operands[k].value);
    for (int i = 0; i <= last_of(map); i++)
        if (map->operands[k].strides[i])
            text_add(code, " + (to.c%d%s) * a.s%d_%d", i, i == last_of(map) ? " + e" : "", k, i);
    text_add(code, ";\n");
}

/* The loaded operand that a store only copies, or -1: whole runs of it are copied as words, not element by element.
   Only runs: a broadcast element would have to be repeated. Types must be equal, as nothing is converted. */
static int copied_operand(const struct map *map, int store) {
    const struct operand *to = &map->operands[store];
    for (int k = 0; k < map->count; k++) {
        const struct operand *from = &map->operands[k];
        if (is_loaded(map, k) && from->value == to->value && from->type == to->type && from->strides[last_of(map)])
            return k;
    }
    return -1;
}

/* True if single elements of a loaded operand are needed: reassembling elements into words is slow. */
static bool needs_elements(const struct map *map, int k) {
    int value = map->operands[k].value;
    for (int i = 0; i < map->region->count; i++) {
        const struct node *node = region_node(map->region, i);
        for (int j = 0; node_is_pointwise(node) && j < node->operand_count; j++)
            if (node->operands[j] == value && !node->is_output[j])
                return true;
    }
    for (int j = 0; j < map->count; j++)
        if (map->operands[j].is_store && map->operands[j].value == value && copied_operand(map, j) < 0)
            return true;
    return false;
}

/* Emits v<value>, element e of a run: loaded operands first, then the result of each node, in the order of the
   region. */
static void emit_values(struct text *code, const struct map *map) {
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        if (operand->memory < 0)
            emit_index(code, map, k);
        else if (!operand->is_store && needs_elements(map, k))
            text_add(code, "        const %s v%d = in.r%d.at[%s];\n", cuda_element_name(operand->type), operand->value,
                     k, operand->strides[last_of(map)] || is_elementwise(map, k) ? "e" : "0");
    }
    for (int i = 0; i < map->region->count; i++) {
        const struct node *node = region_node(map->region, i);
        if (node_is_pointwise(node) && !map_is_index(node))
            formula_emit(code, map->region->graph, node);
    }
}

/* Stores a run in one access if it is contiguous in the result, else element by element. store_run packs elements below
   a byte. */
static void emit_store(struct text *code, const struct map *map, int k) {
    const char *type = cuda_element_name(map->operands[k].type);
    bool is_run = map->operands[k].strides[last_of(map)] == 1;
    if (is_run)
        text_add(code, "    %s<%s, N>(", is_packed(&map->operands[k]) ? "store_run" : "store_global", type);
    else
        text_add(code, "    #pragma unroll\n    for (int e = 0; e < N; e++) store_run<%s, 1>(", type);
    emit_address(code, map, k, "to");
    if (is_run)
        text_add(code, ", w%d);\n", k);
    else if (map->operands[k].strides[last_of(map)])
        text_add(code, " + e * a.s%d_%d, {w%d.at[e]});\n", k, last_of(map), k);
    else
        text_add(code, ", {w%d.at[e]});\n", k);
}

/* Emits compute(): the region's nodes for one run, and the stores. */
static void emit_compute(struct text *code, const struct map *map) {
    text_add(
        code,
        "template <int N> DEVICE void compute(const inputs<N>& in, const arguments& a, const coordinates& to) {\n");
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].is_store)
            text_add(code, "    run<%s, N> w%d;\n", cuda_element_name(map->operands[k].type), k);
    text_add(code, "    #pragma unroll\n    for (int e = 0; e < N; e++) {\n");
    emit_values(code, map);
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].is_store && copied_operand(map, k) < 0)
            text_add(code, "        w%d.at[e] = convert<%s>(v%d);\n", k, cuda_element_name(map->operands[k].type),
                     map->operands[k].value);
    text_add(code, "    }\n");
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].is_store && copied_operand(map, k) >= 0)
            text_add(code, "    copy_run(w%d, in.r%d);\n", k, copied_operand(map, k));
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].is_store)
            emit_store(code, map, k);
    text_add(code, "}\n");
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* Emits along_axis() and along_last(): the two coordinates along which a tile extends. */
static void emit_sides(struct text *code, const struct map *map) {
    text_add(code, "DEVICE i64& along_axis(coordinates& to) { return to.c%d; }\n", map->tile.axis);
    text_add(code, "DEVICE i64& along_last(coordinates& to) { return to.c%d; }\n\n", last_of(map));
}

/* Emits staged, stage_inputs() and take_inputs(): the operands that go through shared memory. left_axis, left_last: the
   extents of the space left for a tile at its end. */
static void emit_stages(struct text *code, const struct map *map) {
    int last = last_of(map);
    emit_sides(code, map);
    text_add(code, "struct staged {\n");
    for (int k = 0; k < map->count; k++)
        if (is_staged(map, k))
            text_add(code, "    exchange<%s> x%d;\n", cuda_type_name(map->operands[k].type), k);
    text_add(code,
             "};\n\nDEVICE void stage_inputs(staged& tile, const arguments& a, const coordinates& to, i64 left_axis, "
             "i64 left_last) {\n");
    for (int k = 0; k < map->count; k++)
        if (is_staged(map, k)) {
            text_add(code, "    tile.x%d.fill<%d>(", k, map->tile.width[k]);
            emit_address(code, map, k, "to");
            text_add(code, ", a.s%d_%d, left_axis, left_last);\n", k, last);
        }
    text_add(code,
             "}\n\nDEVICE void take_inputs(inputs<RUN> (&in)[GROUP], const staged& tile, int axis, int last) {\n");
    for (int k = 0; k < map->count; k++)
        if (is_staged(map, k))
            text_add(code,
                     "    run<%s, RUN> t%d[GROUP];\n    tile.x%d.transposed(t%d, last, axis);\n    #pragma unroll\n"
                     "    for (int g = 0; g < GROUP; g++) copy_run(in[g].r%d, t%d[g]);\n",
                     cuda_type_name(map->operands[k].type), k, k, k, k, k);
    text_add(code, "}\n\n");
}

/* Number of elements of the narrowest staged operand per word, which are adjacent along the axis of a tile: a thread
   processes elements of that many rows together, so that it reads whole words of shared memory. */
static int64_t group_of(const struct map *map) {
    int64_t group = 1;
    for (int k = 0; k < map->count; k++)
        if (is_staged(map, k) && 4 / dtype_bytes(map->operands[k].type, 1) > group)
            group = 4 / dtype_bytes(map->operands[k].type, 1);
    return group < map->tile.along_axis ? group : map->tile.along_axis;
}

/* Constants first, then functions in the order in which they call each other. */
void map_emit(struct kernel_source *source, const struct map *map) {
    bool is_tiled = map->tile.axis >= 0;
    emit_constant(source, "THREADS", MAP_THREADS);
    emit_constant(source, "RUN", map->run);
    text_add(&source->code, "#include \"core/gather.cuh\"\n");
    if (is_tiled) {
        emit_constant(source, "GROUP", group_of(map));
        /* Resident blocks that registers allow: five, or four if a thread holds more; measured in map/map_tiled.cuh. */
        emit_constant(source, "BLOCKS", group_of(map) > 2 || map->count > 2 ? 4 : 5);
        emit_constant(source, "TILE_AXIS", map->tile.along_axis);
        emit_constant(source, "TILE_LAST", map->tile.along_last);
        emit_number(source, map->space.extents[map->tile.axis], "axis_extent");
        emit_number(source, map->space.extents[last_of(map)], "last_extent");
        text_add(&source->code, "#include \"map/exchange.cuh\"\n");
    } else {
        emit_constant(source, "UNROLL", map->unroll);
        emit_constant(source, "EXPECTS", map->expects);
        emit_constant(source, "HAS_REST", space_elements(&map->space) % map->run != 0);
        emit_constant(source, "SHARES_BYTES", map_shares_bytes(map));
        emit_number(source, space_elements(&map->space), "elements");
    }
    text_add(&source->code, "\n");
    emit_operands(source, map);
    emit_locate(source, map);
    if (map->is_flat && last_of(map) > 0)
        emit_advance(&source->code, map);
    emit_loads(&source->code, map);
    /* Tiles are large enough to keep loads in flight by themselves. */
    if (!is_tiled)
        emit_expected(&source->code, map);
    if (is_tiled)
        emit_stages(&source->code, map);
    emit_compute(&source->code, map);
}

/* Emits from_address() or to_address(): an operand of a transpose at coordinates, as bits, because nothing is
   converted. */
static void emit_side(struct text *code, const struct map *map, int k, const char *name, const char *type) {
    text_add(code, "DEVICE %s* %s_address(const arguments& a, const coordinates& to) { return (%s*)(", type, name,
             type);
    emit_address(code, map, k, "to");
    text_add(code, "); }\n");
}

/* `from_span`: elements from the first to the last of the source, beyond which shifted chunks must not be read. Operand
   0 is the result, 1 the source. */
void map_emit_transpose(struct kernel_source *source, const struct map *map) {
    static const char *const bits[] = {[1] = "u8", [2] = "u16", [4] = "u32", [8] = "u64"};
    const struct map_tile *tile = &map->tile;
    const struct operand *from = &map->operands[1], *to = &map->operands[0];
    int64_t span = 1;
    for (int i = 0; i <= last_of(map); i++)
        span += (map->space.extents[i] - 1) * from->strides[i];
    text_add(&source->constants, "using element = %s;\n", bits[dtype_bytes(from->type, 1)]);
    emit_constant(source, "THREADS", TRANSPOSE_THREADS);
    emit_constant(source, "TILE_AXIS", tile->along_axis);
    emit_constant(source, "TILE_LAST", tile->along_last);
    emit_constant(source, "SHIFTS_FROM", tile->shifts_from);
    emit_constant(source, "SHIFTS_TO", tile->shifts_to);
    emit_constant(source, "IS_FLAT_FROM", tile->is_flat_from);
    emit_constant(source, "IS_FLAT_TO", tile->is_flat_to);
    emit_number(source, map->space.extents[tile->axis], "axis_extent");
    emit_number(source, map->space.extents[last_of(map)], "last_extent");
    emit_number(source, from->strides[last_of(map)], "from_step");
    emit_number(source, to->strides[tile->axis], "to_step");
    emit_number(source, span, "from_span");
    text_add(&source->code, "#include \"core/gather.cuh\"\n#include \"core/chunks.cuh\"\n\n");
    emit_operands(source, map);
    emit_locate(source, map);
    emit_sides(&source->code, map);
    text_add(&source->code, "DEVICE const element* from_memory(const arguments& a) { return (const element*)a.p1; }\n");
    emit_side(&source->code, map, 1, "from", "const element");
    emit_side(&source->code, map, 0, "to", "element");
}
