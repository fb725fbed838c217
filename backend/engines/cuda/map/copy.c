/* SPDX-License-Identifier: Apache-2.0 */
/* Copy family (cuda_move): operations that only move elements and that the map family does not support: concat,
   reshapes of tensors that are not packed, results of another data type. The work is a list of copies ("parts"), one
   per input. Each side of a copy maps the same positions to its own coordinates. The host code decides and emits;
   map/copy.cuh copies, and join.cuh joins packed tensors. */
#include "engines/cuda/map/copy.h"
#include "base/number.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "graph/ops/concat.h"

#include <stdio.h>

enum { THREADS = 256, UNROLL = 4 }; /* UNROLL: vectors that a thread loads before it stores them */

/* This is on the stack of accepts or build: parts refer to the operation's tensors. */
struct movement {
    const struct region *region;
    const struct descriptor *op;
    int count;
    struct part parts[COPY_PARTS_MAX];
};

/* ---- Supported operations ---------------------------------------------------------------------------------------- */

/* Vectorized tensors and unknown types are left to the staged family. */
static weftStatus_t check_tensors(const struct region *region, const struct node *node) {
    for (int k = 0; k < node->operand_count; k++) {
        const struct tensor *tensor = region->graph->values[node->operands[k]].tensor;
        TRY(tensor_check_plain(tensor, node->op));
        if (!cuda_element_name((weftDataType_t)tensor->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
                 descriptor_label(node->op), descriptor_label(&tensor->base),
                 dtype_of((weftDataType_t)tensor->type)->name);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Number of adjacent elements in one access to a side: at most 16 bytes, provided that every row begins at a multiple
   of it; scratch is aligned. */
static int64_t side_run(const struct side *side) {
    const struct tensor *tensor = side->tensor;
    int last = side->rank - 1;
    if (last < 0 || side->strides[last] != 1 || (!side->is_scratch && (tensor->is_by_value || tensor->is_constant)))
        return 1;
    int64_t fits = gcd64(side->is_scratch ? 16 : tensor->alignment, 16) * 8 / dtype_of(side->type)->bits;
    int64_t run = gcd64(gcd64(fits > 1 ? fits : 1, side->extents[last]), side->offset);
    for (int i = 0; i < last; i++)
        run = gcd64(run, side->strides[i]);
    return run;
}

/* The minimum over both sides. */
static int64_t run_of(const struct part *part) { return gcd64(side_run(&part->from), side_run(&part->to)); }

/* True if runs do not fill bytes of the destination. Then threads process bytes of it and search the positions whose
   elements these contain, so such a part must write all of its tensor. */
static bool is_by_byte(const struct part *part) { return run_of(part) * dtype_of(part->to.type)->bits % 8 != 0; }

/* A single node. Parts of several inputs must not share bytes of the result, as their threads would race. */
static weftStatus_t analyse(struct movement *m, const struct region *region) {
    m->region = region;
    m->op = region_node(region, 0)->op;
    m->count = 0;
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(m->op),
             descriptor_label(region_node(region, 1)->op));
    TRY(check_tensors(region, region_node(region, 0)));
    /* Parts are listed over the dims; then each side is merged separately. */
    TRY(movement_list(m->parts, COPY_PARTS_MAX, &m->count, m->op));
    for (int k = 0; k < m->count; k++)
        part_merge(&m->parts[k]);
    for (int k = 0; k < m->count && m->count > 1; k++)
        if (is_by_byte(&m->parts[k]))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its inputs share bytes of the result", descriptor_label(m->op));
    return WEFT_STATUS_SUCCESS;
}

/* True if adjacent positions are not adjacent in memory. */
static bool is_across(const struct side *side) { return side->rank > 0 && side->strides[side->rank - 1] > 1; }

/* Bytes that a side transfers: whole sectors if adjacent elements of the result are not adjacent there. elements: the
   number of elements of the part. */
static double side_bytes(const struct side *side, int64_t elements) {
    double one = (double)dtype_of(side->type)->bits / 8;
    /* Each element costs a sector of its own. */
    if (is_across(side) && one < PRICE_SECTOR_BYTES)
        return (double)elements * PRICE_SECTOR_BYTES;
    bool is_whole = elements == tensor_elements(side->tensor); /* including the gaps between its rows */
    return (double)(is_whole ? tensor_bytes(side->tensor) : dtype_bytes(side->type, elements));
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct movement m;
    TRY(analyse(&m, region));
    double bytes = 0;
    int trips = 1; /* memory latencies: whole sectors are waited for */
    for (int k = 0; k < m.count; k++)
        trips = is_across(&m.parts[k].from) || is_across(&m.parts[k].to) ? 2 : trips;
    for (int k = 0; k < m.count; k++)
        for (int side = 0; side < 2; side++)
            bytes += side_bytes(side ? &m.parts[k].to : &m.parts[k].from, part_elements(&m.parts[k]));
    offer->seconds = trips * PRICE_LAUNCH_SECONDS + price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

/* Emits the address of a side's first element. For types narrower than a byte, the offset is counted in elements. */
static void emit_base(struct kernel_source *source, const struct side *side, const char *field) {
    /* If elements are narrower than a byte, the pointer counts elements. */
    bool is_packed = !cuda_type_name(side->type);
    if (side->is_scratch)
        emit_scratch(source, cuda_type_name(side->type), side->scratch, field);
    else
        emit_pointer(source, side->type, graph_find_value(source->graph, side->tensor),
                     is_packed ? 0 : dtype_bytes(side->type, side->offset), field);
    /* packed<T> counts elements narrower than a byte; other pointers count elements anyway. */
    text_add(&source->code, "        auto at = p.%s + ", field);
    if (is_packed && side->offset) {
        char text[48];
        snprintf(text, sizeof text, "%s_offset", field);
        emit_number(source, side->offset, text);
        text_add(&source->code, "p.%s;\n", text);
    } else {
        text_add(&source->code, "0;\n");
    }
}

/* Emits from() or to(): the address of a position, which divisors split into coordinates, fastest first. */
static void emit_side(struct kernel_source *source, int k, const struct side *side, const char *name) {
    char text[32];
    text_add(&source->code, "    static DEVICE auto %s(const arguments& p, position rest) {\n", name);
    snprintf(text, sizeof text, "%s%d", name, k);
    emit_base(source, side, text);
    for (int i = side->rank; i-- > 0;) {
        if (i > 0) {
            snprintf(text, sizeof text, "%s%d_extent%d", name, k, i);
            emit_divisor(source, side->extents[i], text);
            text_add(&source->code, "        at = at + (i64)split(rest, p.%s)", text);
        } else {
            text_add(&source->code, "        at = at + (i64)rest");
        }
        /* A stride of 1 is part of the text, others are arguments. */
        if (side->strides[i] != 1) {
            snprintf(text, sizeof text, "%s%d_stride%d", name, k, i);
            emit_number(source, side->strides[i], text);
            text_add(&source->code, " * p.%s", text);
        }
        text_add(&source->code, ";\n");
    }
    text_add(&source->code, "        return at;\n    }\n");
}

/* Orders the modes of a side from the largest stride to the smallest. */
static void order_by_stride(const struct side *side, int *order) {
    for (int i = 0; i < side->rank; i++) {
        int at = i;
        for (; at > 0 && side->strides[order[at - 1]] < side->strides[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* Emits find(): the position of an element of the destination from its location in memory; false between elements. Each
   division by a stride, the largest first, gives one coordinate. `size` is the number of positions per step of that
   coordinate, since the modes of a reshape are not in memory order. */
static void emit_find(struct kernel_source *source, int k, const struct side *to) {
    int order[SIDE_MODES];
    order_by_stride(to, order);
    text_add(&source->code,
             "    static DEVICE bool find(const arguments& p, i64 rest, position& at) {\n        at = 0;\n");
    for (int i = 0; i < to->rank; i++) {
        char stride[48], extent[48], size[48];
        int64_t passed = 1;
        for (int j = order[i] + 1; j < to->rank; j++)
            passed *= to->extents[j];
        snprintf(stride, sizeof stride, "find%d_stride%d", k, i);
        snprintf(extent, sizeof extent, "find%d_extent%d", k, i);
        snprintf(size, sizeof size, "find%d_size%d", k, i);
        emit_number(source, to->strides[order[i]], stride);
        emit_number(source, to->extents[order[i]], extent);
        emit_number(source, passed, size);
        text_add(&source->code,
                 "        if (rest / p.%s >= p.%s) return false;\n"
                 "        at += (position)(rest / p.%s) * (position)p.%s;\n        rest %%= p.%s;\n",
                 stride, extent, stride, size, stride);
    }
    text_add(&source->code, "        return rest == 0;\n    }\n");
}

/* Number of runs of a part, or of bytes: from the first to the last byte that the part writes, including gaps. */
static int64_t items_of(const struct part *part) {
    int64_t span = 1;
    if (!is_by_byte(part))
        return part_elements(part) / run_of(part);
    for (int i = 0; i < part->to.rank; i++)
        span += (part->to.extents[i] - 1) * part->to.strides[i];
    return dtype_bytes(part->to.type, span);
}

/* Emits struct part<k>, the template argument of map/copy.cuh's copies. */
static void emit_part(struct kernel_source *source, const struct part *part, int k) {
    char text[32];
    text_add(
        &source->code,
        "struct part%d {\n    using position = %s;\n    using from_t = %s;\n    using to_t = %s;\n"
        "    static constexpr int RUN = %d;\n    static DEVICE i64 runs(const arguments& p) { return p.runs%d; }\n",
        k, index_type(part_elements(part)), cuda_element_name(part->from.type), cuda_element_name(part->to.type),
        (int)run_of(part), k);
    snprintf(text, sizeof text, "runs%d", k);
    emit_number(source, items_of(part), text);
    /* Threads process bytes of the result, and search the elements in them. */
    if (is_by_byte(part))
        emit_find(source, k, &part->to);
    emit_side(source, k, &part->from, "from");
    emit_side(source, k, &part->to, "to");
    text_add(&source->code, "};\n\n");
}

/* Blocks of a part; they are persistent beyond 64 per multiprocessor. */
static int64_t blocks_of(const struct part *part, const struct device *device) {
    int64_t runs = items_of(part), each = THREADS * UNROLL, most = (int64_t)device->cuda.multiprocessors * 64;
    int64_t blocks = divide_up(runs, each);
    return blocks < most ? blocks : most;
}

/* Emits copy_parts() and returns the number of blocks. All parts share one grid: each has its own blocks, which find
   their part by number. `deal`: the text of the function, which must follow the parts that it names. */
static int64_t emit_parts(struct kernel_source *source, const struct part *parts, int count,
                          const struct device *device) {
    struct text deal;
    int64_t blocks = 0;
    text_init(&deal);
    for (int k = 0; k < count; k++) {
        char text[32];
        emit_part(source, &parts[k], k);
        snprintf(text, sizeof text, "first%d", k);
        emit_number(source, blocks, text);
        blocks += blocks_of(&parts[k], device);
        snprintf(text, sizeof text, "end%d", k);
        emit_number(source, blocks, text);
        text_add(
            &deal,
            "    if (block >= p.first%d && block < p.end%d) %s<part%d>(p, block - p.first%d, p.end%d - p.first%d);\n",
            k, k, is_by_byte(&parts[k]) ? "copy_bytes" : "copy_part", k, k, k, k);
    }
    text_add(&source->code, "DEVICE void copy_parts(const arguments& p) {\n    const i64 block = blockIdx.x;\n%s}\n",
             text_string(&deal));
    source->code.failed = source->code.failed || deal.failed;
    text_free(&deal);
    return blocks;
}

/* Launches COPY_PARTS_PER_KERNEL parts at a time, because a kernel's arguments are limited. */
weftStatus_t copy_add_kernels(struct cuda_step *state, const struct region *region, const struct part *parts, int count,
                              const struct device *device, struct arena *arena) {
    for (int first = 0; first < count; first += COPY_PARTS_PER_KERNEL) {
        struct kernel_source source;
        if (state->count == KERNELS_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the step would have more than %d kernels", KERNELS_MAX);
        struct cuda_kernel *kernel = &state->kernels[state->count++];
        /* Arguments are emitted for each kernel separately, with the numbers 0 .. here - 1. */
        int left = count - first, part_count = left < COPY_PARTS_PER_KERNEL ? left : COPY_PARTS_PER_KERNEL;
        kernel_source_init(&source, region);
        emit_constant(&source, "THREADS", THREADS);
        emit_constant(&source, "UNROLL", UNROLL);
        text_add(&source.code,
                 "#include \"core/gather.cuh\"\n\n"
                 "template <class part> DEVICE void copy_part(const arguments& p, i64 block, i64 blocks);\n"
                 "template <class part> DEVICE void copy_bytes(const arguments& p, i64 block, i64 blocks);\n\n");
        int64_t blocks = emit_parts(&source, parts + first, part_count, device);
        TRY(kernel_finish(&source, kernel, "map/copy.cuh", "copy", arena));
        kernel->grid[0] = (uint32_t)blocks;
        kernel->grid[1] = kernel->grid[2] = 1;
        kernel->block = THREADS;
        kernel->is_dependent = device->cuda.major >= 9;
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Joining packed tensors -------------------------------------------------------------------------------------- */

/* The length of a row of the result, to which parts contribute adjacent pieces. */
static int64_t row_of(const struct movement *m) {
    int64_t length = 0;
    for (int k = 0; k < m->count; k++)
        length += m->parts[k].to.extents[m->parts[k].to.rank - 1];
    return length;
}

/* True if the parts are packed rows that are copied unchanged, in whole bytes, to adjacent pieces of packed rows. The
   parts must be in the order of the result, without gaps. */
static bool is_join(const struct movement *m) {
    int64_t before = 0, length;
    /* One kernel has to name all parts; a single part is a plain copy. */
    if (m->count < 2 || m->count > COPY_PARTS_PER_KERNEL)
        return false;
    for (int k = 0; k < m->count; k++)
        if (m->parts[k].to.rank < 1)
            return false;
    length = row_of(m);
    for (int k = 0; k < m->count; k++) {
        const struct side *from = &m->parts[k].from, *to = &m->parts[k].to;
        /* A part is one row, or rows whose stride is one row length of the result. */
        bool is_row =
            to->rank == 1 ? part_elements(&m->parts[k]) == to->extents[0] : to->rank == 2 && to->strides[0] == length;
        if (!is_row || to->rank != m->parts[0].to.rank ||
            to->extents[0] * (to->rank > 1) != m->parts[0].to.extents[0] * (to->rank > 1) ||
            to->strides[to->rank - 1] != 1 || to->offset != before || from->rank != 1 || from->strides[0] != 1 ||
            from->type != to->type || !cuda_type_name(to->type) || from->tensor->is_by_value ||
            from->tensor->is_constant)
            return false;
        before += to->extents[to->rank - 1];
    }
    return length < INT32_MAX && m->parts[0].to.tensor->alignment % 16 == 0;
}

/* Emits find(): the source of a position in a row. x<k> is a source, count<k> its piece of a row, end<k> where that
   ends, elements<k> its total. */
static void emit_pieces(struct kernel_source *source, const struct movement *m) {
    /* Elements are copied as unsigned integers of their size. */
    static const char *const bits[] = {[1] = "u8", [2] = "u16", [4] = "u32", [8] = "u64"};
    const struct side *result = &m->parts[0].to;
    int64_t before = 0;
    text_add(&source->constants, "using element = %s;\n", bits[dtype_bytes(result->type, 1)]);
    emit_pointer(source, result->type, graph_find_value(source->graph, result->tensor), 0, "y");
    text_add(&source->code, "DEVICE element* to_memory(const arguments& p) { return (element*)p.y; }\n\n"
                            "DEVICE piece find(const arguments& p, i64 row, i64 column) {\n");
    for (int k = 0; k < m->count; k++) {
        const struct side *from = &m->parts[k].from, *to = &m->parts[k].to;
        char x[32], count[32], end[32], elements[32];
        snprintf(x, sizeof x, "x%d", k);
        snprintf(count, sizeof count, "count%d", k);
        snprintf(end, sizeof end, "end%d", k);
        snprintf(elements, sizeof elements, "elements%d", k);
        before += to->extents[to->rank - 1];
        emit_pointer(source, from->type, graph_find_value(source->graph, from->tensor), 0, x);
        emit_number(source, to->extents[to->rank - 1], count);
        emit_number(source, before, end);
        emit_number(source, part_elements(&m->parts[k]), elements);
        if (k + 1 < m->count)
            text_add(&source->code, "    if (column < p.%s) ", end);
        else
            text_add(&source->code, "    ");
        text_add(&source->code, "return piece_of(p.%s, row, p.%s - column, p.%s, p.%s);\n", x, end, count, elements);
    }
    text_add(&source->code, "}\n\n");
}

/* Adds one kernel that writes the result once, in order. each: elements of a chunk, such that no chunk crosses the
   border of a part, if that is at least half a chunk of 16 bytes; else whole chunks, assembled by shifts. */
static weftStatus_t build_join(struct step *step, struct cuda_step *state, const struct movement *m,
                               const struct device *device, struct arena *arena) {
    const struct side *result = &m->parts[0].to;
    int64_t bytes = dtype_bytes(result->type, 1), each = 16 / bytes, elements = 0;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    struct kernel_source source;
    for (int k = 0; k < m->count; k++) {
        /* No chunk spans two inputs. */
        each = gcd64(each, run_of(&m->parts[k]));
        elements += part_elements(&m->parts[k]);
    }
    bool is_aligned = each * bytes >= 8;
    each = is_aligned ? each : 16 / bytes;
    kernel_source_init(&source, &step->region);
    emit_constant(&source, "THREADS", THREADS);
    /* shifted chunks need many registers: more threads are better than more loads */
    int unroll = is_aligned ? UNROLL : 1;
    emit_constant(&source, "UNROLL", unroll);
    emit_constant(&source, "EACH", each);
    emit_constant(&source, "IS_ALIGNED", is_aligned);
    text_add(&source.constants, "using position = %s;\n", index_type(elements));
    text_add(&source.code, "#include \"core/gather.cuh\"\n#include \"core/chunks.cuh\"\n\n");
    /* Converts the number of an element of the result to its row and column. */
    emit_divisor(&source, row_of(m), "length");
    emit_number(&source, elements, "elements");
    emit_pieces(&source, m);
    TRY(kernel_finish(&source, kernel, "map/join.cuh", "join", arena));
    int64_t blocks = divide_up(elements, each * THREADS * unroll);
    kernel->grid[0] = (uint32_t)(blocks < INT32_MAX ? blocks : INT32_MAX);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    kernel->is_dependent = device->cuda.major >= 9;
    return arena_print(arena, &step->detail, "%d tensor%s joined, %lld element%s at once", m->count, plural(m->count),
                       (long long)each, plural(each));
}

/* Packed tensors are joined: copying part by part, short pieces of rows would be short accesses. */
static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct movement m;
    struct cuda_step *state;
    TRY(analyse(&m, &step->region));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (op_of(m.op) == &concat_op && is_join(&m))
        return build_join(step, state, &m, device, arena);
    TRY(copy_add_kernels(state, &step->region, m.parts, m.count, device, arena));
    return arena_print(arena, &step->detail, "%d %s, runs of %d", m.count, m.count == 1 ? "copy" : "copies",
                       m.count ? (int)run_of(&m.parts[0]) : 0);
}

const struct family cuda_move = {
    .name = "cuda.move",
    .doc = "concatenation and other copies, converting elements if types differ",
    .accepts = accepts,
    .build = build,
};
