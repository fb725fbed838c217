/* SPDX-License-Identifier: Apache-2.0 */
/* Generates the code of the views of A and B: their tensor maps, the two functions that copy a box of each, and the
   wgmma instruction of the tile's width. This file must not know how tile and views were chosen. */
#include "base/number.h"
#include "engines/cuda/product/hopper/hopper.h"

static const char *const spatial_names[] = {"d", "h", "w"};

/* Returns the bytes per element of either operand. */
static int64_t stored_bytes(const struct hopper *h) {
    return dtype_bytes((weftDataType_t)h->c.operand[OPERAND_A].tensor->type, 1);
}

/* Returns the extent of the tile along the operand's own index. */
static int block_of(const struct hopper *h, int operand) {
    return operand == OPERAND_A ? h->tile->rows : h->tile->columns;
}

/* True if each block of a cluster loads a share of the operand and multicasts it. */
static bool is_shared(const struct hopper *h, int operand) { return operand == OPERAND_B && h->tile->cluster > 1; }

/* Number of boxes per stage. Rows of 128 bytes along k are one box, or one for each block of a cluster; each panel is a
   box. A panel has HOPPER_PANEL 16-bit elements. */
static int box_count(const struct hopper *h, int operand) {
    int panel = (int)(HOPPER_K_BYTES / stored_bytes(h));
    return h->view[operand].is_k_major ? is_shared(h, operand) ? h->tile->cluster : 1 : block_of(h, operand) / panel;
}

/* ---- Tensor maps ------------------------------------------------------------------------------------------------- */

/* 8-bit types of any meaning are U8; a float is TF32, which TMA rounds as the tensor core requires. */
enum tensor_map_type hopper_map_type(weftDataType_t type) {
    return dtype_bytes(type, 1) == 1    ? TENSOR_MAP_U8
           : type == WEFT_DATA_HALF     ? TENSOR_MAP_F16
           : type == WEFT_DATA_BFLOAT16 ? TENSOR_MAP_BF16
                                        : TENSOR_MAP_TF32;
}

/* The box of one copy has 128 bytes of the contiguous dimension, the tile's extent of the other one, and one element of
   all the rest. An im2col map has no box; it counts channels and pixels, whose corners range from `lower` to `upper`,
   relative to the two ends of the image. */
static struct tensor_map_form form_of(const struct hopper *h, int operand) {
    const struct map_view *view = &h->view[operand];
    int64_t row = HOPPER_K_BYTES / stored_bytes(h);
    struct tensor_map_form form = {.type = hopper_map_type((weftDataType_t)h->c.operand[operand].tensor->type),
                                   .rank = view->count,
                                   .swizzle = TENSOR_MAP_128B,
                                   .promotion = TENSOR_MAP_L2_128B};
    for (int i = 0; i < view->count; i++) {
        const struct view_dim *dim = &view->dims[i];
        bool is_outer = dim->role == ROLE_OUTER && view->is_k_major;
        form.dims[i] = (uint64_t)dim->extent;
        if (i > 0)
            form.strides[i - 1] = (uint64_t)(dim->stride * stored_bytes(h));
        form.box[i] = (uint32_t)(is_outer ? block_of(h, operand) / box_count(h, operand)
                                 : dim->role == ROLE_K || dim->role == ROLE_OUTER ? row
                                                                                  : 1);
    }
    if (!view->is_image)
        return form;
    form.channels = (uint32_t)row;
    form.pixels = (uint32_t)(h->k_is_pixels ? row : block_of(h, operand));
    /* The first dimension is channels, the last images; the spatial ones are in between, innermost first. */
    for (int i = 1; i < view->count - 1; i++) {
        const struct positions *at = &h->positions[view->dims[i].number];
        form.steps[i] = (uint32_t)at->stride;
        form.lower[i - 1] = (int32_t)at->corner;
        form.upper[i - 1] = (int32_t)(at->corner + (at->count - 1) * at->stride + 1 - at->size);
    }
    return form;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* True if the last dimension selects the image of a plane of pixels. */
static bool has_planes(const struct map_view *view) { return view->dims[view->count - 1].role == ROLE_PLANE; }

/* Emits one coordinate of a copy according to the role of its dimension. The channels of a group start at an offset of
   per_group in the map; entry[0] is the group, the first mode of the batch. */
static void emit_coordinate(struct kernel_source *source, const struct hopper *h, int operand, int i) {
    const struct view_dim *dim = &h->view[operand].dims[i];
    const char *from = h->k_is_pixels ? "k" : "at";
    switch (dim->role) {
    case ROLE_K:
        text_add(&source->code, ", %s",
                 has_planes(&h->view[operand]) ? "pixel"
                 : h->k_is_pixels              ? "k.position"
                                               : "k.c");
        break;
    case ROLE_PLANE:
        text_add(&source->code, ", (i32)plane");
        break;
    case ROLE_OUTER:
        text_add(&source->code, ", outer");
        break;
    case ROLE_TAP:
        text_add(&source->code, ", at.filter(%d, k.tap[%d])", dim->number, dim->number);
        break;
    case ROLE_ENTRY:
        text_add(&source->code, ", at.entry[%d]", dim->number);
        break;
    case ROLE_IMAGE:
        text_add(&source->code, ", %s.from.%s", from, dim->number < 0 ? "image" : spatial_names[dim->number]);
        break;
    }
    if (!dim->per_group)
        return;
    struct name field = named("%c_group%d", "ab"[operand], i);
    emit_number(source, dim->per_group, field.text);
    text_add(&source->code, " + at.entry[0] * (i32)p.%s", field.text);
}

/* Emits split_taps(), which splits the result's index into taps and channel, by divisors from the innermost tap
   outwards. After the last tap, the first one repeats, but no result is stored for it. With a single tap, channels
   continue into zeros. There are extent / taps channels, because the index was rounded up to whole panels per tap
   (hopper_order). */
static void emit_split_taps(struct kernel_source *source, const struct hopper *h) {
    const struct modes *outer = &h->c.modes[h->is_swapped ? ROW : COLUMN];
    int64_t taps = h->positions[0].taps * h->positions[1].taps * h->positions[2].taps;
    text_add(&source->code, "DEVICE void split_taps(const arguments& p, i32& outer, i32 (&tap)[3]) {\n");
    if (taps == 1) {
        text_add(&source->code, "    tap[0] = tap[1] = tap[2] = 0;\n}\n\n");
        return;
    }
    emit_divisor(source, modes_extent(outer) / taps, "outer_channels");
    text_add(&source->code, "    u32 rest = (u32)outer;\n    outer = (i32)split(rest, p.outer_channels);\n");
    for (int i = COORDINATES; i-- > 0;) {
        emit_divisor(source, h->positions[i].taps, named("outer_taps%d", i).text);
        text_add(&source->code, "    tap[%d] = (i32)split(rest, p.outer_taps%d);\n", i, i);
    }
    text_add(&source->code, "}\n\n");
}

/* Emits a test whether a pixel under a tap is inside the image, for dimensions in which it may be outside. TMA fills
   pixels outside with zeros, which a prologue would change, so it calls this function. */
static void emit_is_inside(struct kernel_source *source, const struct hopper *h) {
    text_add(&source->code,
             "DEVICE bool is_inside(const arguments& p, const tile_coordinates& at, const pixel& from, const i32 "
             "(&tap)[3]) {\n    return true");
    for (int i = 0; i < COORDINATES; i++) {
        const struct positions *at = &h->positions[i];
        int64_t reach = at->offset + (at->tap_step > 0 ? (at->taps - 1) * at->tap_step : 0);
        if (at->corner >= 0 && at->corner + (at->count - 1) * at->stride + reach < at->size)
            continue;
        emit_number(source, at->size, named("size%d", i).text);
        text_add(&source->code, " && (u32)(from.%s + at.offset(%d, tap[%d])) < (u32)p.size%d", spatial_names[i], i, i,
                 i);
    }
    text_add(&source->code, ";\n}\n\n");
}

/* The first part has the name of an operand in one piece, because kernels prefetch the map of that name. */
static struct name part_map(int operand, int part) {
    return part ? named("%c_map%d", "ab"[operand], part) : named("%c_map", "ab"[operand]);
}

/* Emits one copy from the map of that name. `before`: number of k that precede this map in other ones, or NULL. */
static void emit_copy(struct kernel_source *source, const struct hopper *h, int operand, const char *map,
                      const char *before) {
    const struct map_view *view = &h->view[operand];
    if (is_shared(h, operand))
        text_add(&source->code, "    share_box(%d, dst, p.%s, full", (1 << h->tile->cluster) - 1, map);
    else
        text_add(&source->code, "    %s(dst, p.%s, full", view->is_image ? "load_pixels" : "load_box", map);
    for (int i = 0; i < view->count; i++) {
        emit_coordinate(source, h, operand, i);
        if (i == 0 && before)
            text_add(&source->code, " - (i32)p.%s", before);
    }
    for (int i = 1; i < view->count - 1 && view->is_image; i++) {
        int number = view->dims[i].number;
        text_add(&source->code, ", at.offset(%d, %stap[%d])", number, h->k_is_pixels ? "" : "k.", number);
    }
    text_add(&source->code, ");\n");
}

/* Emits the copy from the part of the operand that contains the step of k. */
static void emit_copy_of_part(struct kernel_source *source, const struct hopper *h, int operand) {
    const struct concat_op *parts = h->parts[operand];
    char letter = "ab"[operand];
    int last = (int)parts->inputs.count - 1;
    int64_t end = 0;
    for (int part = 0; part < last; part++) {
        end += ((const struct tensor *)parts->inputs.tensors[part])->dims.at[concat_axis(parts)];
        struct name field = named("%c_end%d", letter, part), before = named("%c_end%d", letter, part - 1);
        emit_number(source, end, field.text);
        text_add(&source->code, "    if (k.c < (i32)p.%s) {\n    ", field.text);
        emit_copy(source, h, operand, part_map(operand, part).text, part ? before.text : NULL);
        text_add(&source->code, "        return;\n    }\n");
    }
    emit_copy(source, h, operand, part_map(operand, last).text, last ? named("%c_end%d", letter, last - 1).text : NULL);
}

/* Emits load_a() or load_b(), the copies of one box. `outer`: the operand's own index, `full`: the barrier that counts
   its bytes. */
static void emit_load(struct kernel_source *source, const struct hopper *h, int operand) {
    const struct map_view *view = &h->view[operand];
    char letter = "ab"[operand];
    if (view->is_image && h->k_is_pixels)
        emit_split_taps(source, h);
    if (view->is_image && h->c.prologue_count > 0)
        emit_is_inside(source, h);
    text_add(&source->code,
             "DEVICE void load_%c(const arguments& p, const tile_coordinates& at, const k_cursor& k, i32 outer, u32 "
             "dst, u32 full) {\n",
             letter);
    if (view->is_image && h->k_is_pixels)
        text_add(&source->code, "    i32 tap[3];\n    split_taps(p, outer, tap);\n");
    if (has_planes(view)) {
        emit_divisor(source, view->dims[0].extent, "plane");
        text_add(&source->code,
                 "    u32 plane = (u32)k.position;\n    const i32 pixel = (i32)split(plane, p.plane);\n");
    }
    if (h->parts[operand])
        emit_copy_of_part(source, h, operand);
    else
        emit_copy(source, h, operand, named("%c_map", letter).text, NULL);
    text_add(&source->code, "}\n\n");
}

/* ---- Tile coordinates -------------------------------------------------------------------------------------------- */

/* A table of the taps that each phase of a stride sees, one word each: their number, the first one's position in the
   filter, and its offset from the corner. Computing them in the kernel would require divisions. */
static void emit_phases(struct kernel_source *source, const struct positions *at, int i, bool is_flipped) {
    const struct phase *phase = &at->phase;
    emit_number(source, is_flipped ? -phase->tap_step : phase->tap_step, named("filter_step%d", i).text);
    for (int64_t z = 0; z < phase->stride; z++) {
        int64_t first = 0;
        while (first < phase->taps && (z + phase->pre - first * phase->dilation) % phase->stride != 0)
            first++;
        int64_t count = first < phase->taps ? (phase->taps - 1 - first) / phase->tap_step + 1 : 0;
        int64_t offset = count ? (z + phase->pre - first * phase->dilation) / phase->stride - at->corner : 0;
        int64_t filter = is_flipped && count ? phase->taps - 1 - first : first;
        /* check_phases and the reach of TMA bound taps and offsets to far below 16 bits. */
        emit_number(source, count | filter << 16 | offset << 32, named("phase%d_%d", i, (int)z).text);
    }
    text_add(&source->code,
             "    at.tap[%d] = unpack_taps((&p.phase%d_0)[phase%d], (i32)p.filter_step%d, (i32)p.offset_step%d);\n", i,
             i, i, i, i);
}

/* Emits arguments and code for the taps of one spatial dimension; those of a phase come from a table. */
static void emit_taps(struct kernel_source *source, const struct hopper *h, int i) {
    const struct positions *at = &h->positions[i];
    emit_divisor(source, at->count, named("positions%d", i).text);
    /* The stride is in pixels; offsets of taps are relative to the corner. */
    emit_number(source, at->stride, named("stride%d", i).text);
    emit_number(source, at->corner, named("start%d", i).text);
    emit_number(source, at->tap_step, named("offset_step%d", i).text);
    if (at->phase.stride) {
        emit_phases(source, at, i, h->is_flipped);
        return;
    }
    emit_number(source, h->taps[i], named("taps%d", i).text);
    emit_number(source, at->offset, named("offset%d", i).text);
    text_add(&source->code, "    at.tap[%d] = taps{(i32)p.taps%d, %s, (i32)p.offset%d, (i32)p.offset_step%d};\n", i, i,
             h->is_flipped ? named("(i32)p.taps%d - 1, -1", i).text : "0, 1", i, i);
}

/* Emits the decomposition of the batch entry into its modes, phases or coordinates of the maps, from the fastest mode
   to the slowest, which is the last quotient. */
static void emit_entry(struct kernel_source *source, const struct hopper *h) {
    const struct modes *batch = &h->c.modes[BATCH];
    if (batch->count)
        text_add(&source->code, "    u32 rest = (u32)at.z;\n");
    for (int d = batch->count; d-- > 0;) {
        int phase = batch->at[d].phase;
        if (d > 0)
            emit_divisor(source, batch->at[d].extent, named("entries%d", d).text);
        if (phase != NO_PHASE)
            text_add(&source->code, "    const u32 phase%d", h->c.phases[phase].coordinate);
        else
            text_add(&source->code, "    at.entry[%d]", d);
        text_add(&source->code, d > 0 ? " = split(rest, p.entries%d);\n" : " = rest;\n", d);
    }
}

/* Emits the number of rows, columns and k that the batch entry uses. */
static void emit_override(struct kernel_source *source, const struct hopper *h, int n) {
    static const char *const names[] = {"rows", "columns", "channels"};
    if (!h->c.used[n]) {
        text_add(&source->code, "    at.used[%d] = (i32)p.%s;\n", n, names[n]);
        return;
    }
    text_add(&source->code, "    at.used[%d] = used_of(", n);
    contraction_emit_override(source, &h->c, n, "at.entry[%d]");
    text_add(&source->code, ", p.%s);\n", names[n]);
}

/* Emits find_entry(p, at), which the tile scheduler calls for a batch entry before any of its copies. For images it
   also computes the first pixel of the tile. */
static void emit_find_entry(struct kernel_source *source, const struct hopper *h) {
    bool has_image = h->view[OPERAND_A].is_image || h->view[OPERAND_B].is_image;
    text_add(&source->code, "DEVICE void find_entry(const arguments& p, tile_coordinates& at) {\n");
    emit_entry(source, h);
    for (int i = 0; i < COORDINATES && (has_image || h->is_planes); i++)
        emit_taps(source, h, i);
    if (has_image && !h->k_is_pixels)
        text_add(&source->code, "    at.from = find_pixel(p, (u32)at.%s);\n",
                 h->view[OPERAND_A].is_image ? "row" : "column");
    for (int n = 0; n < 3 && contraction_has_overrides(&h->c); n++)
        emit_override(source, h, n);
    if (h->c.phase_count)
        text_add(&source->code,
                 "    at.phase_steps = at.tap[0].count * at.tap[1].count * at.tap[2].count * (i32)p.blocks;\n");
    text_add(&source->code, "}\n\n");
}

/* Map of the single result, which is stored from epilogue tiles in shared memory. 16 rows: the part of a wgmma result
   that a warp holds. A dimension of one element gets a stride of 16 bytes, because the driver requires one. */
static struct tensor_map_form result_form(const struct hopper *h,
                                          /* or an operand with the same layout */
                                          const struct epilogue_operand *store) {
    const struct epilogue *epilogue = &h->c.epilogue;
    int64_t bytes = hopper_result_bytes(h), width = hopper_epilogue_columns(h);
    struct tensor_map_form form = {.type = bytes == 4 ? TENSOR_MAP_I32 : hopper_map_type(store->type),
                                   .rank = epilogue->mode_count[BATCH] ? 3 : 2,
                                   .dims = {(uint64_t)modes_extent(&h->c.modes[COLUMN]),
                                            (uint64_t)modes_extent(&h->c.modes[ROW]),
                                            (uint64_t)modes_extent(&h->c.modes[BATCH])},
                                   .box = {(uint32_t)width, 16, 1},
                                   .swizzle = width * bytes == 128  ? TENSOR_MAP_128B
                                              : width * bytes == 64 ? TENSOR_MAP_64B
                                                                    : TENSOR_MAP_32B};
    static const enum index outer[] = {ROW, BATCH};
    for (int i = 0; i < form.rank - 1; i++)
        form.strides[i] = epilogue->mode_count[outer[i]] ? (uint64_t)(store->strides[outer[i]][0] * bytes) : 16;
    return form;
}

/* Each part of an operand has its own map, up to its end along k. */
static void emit_part_maps(struct kernel_source *source, const struct hopper *h, int f) {
    const struct concat_op *parts = h->parts[f];
    for (int part = 0; part < parts->inputs.count; part++) {
        const struct tensor *tensor = parts->inputs.tensors[part];
        struct cuda_map map = {.form = form_of(h, f), .is_im2col = h->view[f].is_image};
        map.form.dims[0] = (uint64_t)tensor->dims.at[concat_axis(parts)];
        for (int i = 1; i < h->view[f].count; i++)
            map.form.strides[i - 1] = (uint64_t)(hopper_part_stride(h, f, part, i) * stored_bytes(h));
        emit_map(source, graph_find_value(h->c.region->graph, tensor), &map, part_map(f, part).text);
    }
}

/* emit_map requires that maps precede all other fields. */
void hopper_emit_maps(struct kernel_source *source, const struct hopper *h) {
    static const char *const names[] = {"a_map", "b_map"};
    for (int f = 0; f < OPERANDS; f++) {
        if (h->parts[f]) {
            emit_part_maps(source, h, f);
            continue;
        }
        struct cuda_map map = {.form = form_of(h, f), .is_im2col = h->view[f].is_image};
        /* the corner of an image is part of its form */
        map.offset = h->is_matrix ? h->c.operand[f].first * stored_bytes(h) : 0;
        emit_map(source, h->c.operand[f].value, &map, names[f]);
    }
    if (h->stores_boxes) {
        struct cuda_map map = {.form = result_form(h, h->store)};
        emit_map(source, h->store->value, &map, "c_map");
    }
    if (h->second) {
        struct cuda_map map = {.form = result_form(h, h->second)};
        emit_map(source, h->second->value, &map, "c2_map");
    }
    if (h->has_aux_load) {
        const struct epilogue_operand *operand = &h->c.epilogue.at[h->auxiliary];
        struct cuda_map map = {.form = result_form(h, operand)};
        emit_map(source, operand->value, &map, "r_map");
    }
}

/* The run is 2 in this kernel, so a run of the result is one word of twice its width. */
void epilogue_emit_pairs(struct kernel_source *source, const struct contraction *c,
                         const struct epilogue_operand *store) {
    static const char *const types[] = {[1] = "u16", [2] = "u32", [4] = "u64"};
    const char *type = types[dtype_bytes(store->type, 1)];
    text_add(&source->code, "DEVICE %s pair_of(const results& out) { return *(const %s*)&out.f%d; }\n\n", type, type,
             (int)(store - c->epilogue.at));
}

/* Emits the TMA stores of results and the TMA load of the auxiliary operand; without TMA, addresses for threads. */
void hopper_emit_result(struct kernel_source *source, const struct hopper *h) {
    epilogue_emit_pairs(source, &h->c, h->store);
    if (h->c.epilogue.reduces_stored)
        reductions_emit_stored(source, &h->c, h->store);
    if (h->stores_boxes)
        text_add(&source->code,
                 "DEVICE void store_result(const arguments& p, index z, u32 src, i32 column, i32 row) {\n"
                 "    store_box(p.c_map, src, column, row%s);\n}\n\n",
                 h->c.epilogue.mode_count[BATCH] ? ", (i32)z" : "");
    if (h->second)
        text_add(&source->code,
                 "DEVICE u32 pair_of_second(const results& out) { return *(const u32*)&out.f%d; }\n\n"
                 "DEVICE void store_second(const arguments& p, index z, u32 src, i32 column, i32 row) {\n"
                 "    store_box(p.c2_map, src, column, row%s);\n}\n\n",
                 (int)(h->second - h->c.epilogue.at), h->c.epilogue.mode_count[BATCH] ? ", (i32)z" : "");
    if (h->has_aux_load)
        text_add(&source->code,
                 "DEVICE void load_aux_box(const arguments& p, index z, u32 dst, u32 full, i32 column, i32 row) {\n"
                 "    load_box(dst, p.r_map, full, column, row%s);\n}\n\n"
                 "DEVICE void set_aux_pair(fetched& in, u32 pair) { *(u32*)&in.f%d = pair; }\n\n",
                 h->c.epilogue.mode_count[BATCH] ? ", (i32)z" : "", h->auxiliary);
    if (!h->stores_boxes)
        epilogue_emit_address(source, &h->c, (int)(h->store - h->c.epilogue.at));
}

/* Constants come first, then find_entry(), then the functions that load boxes, which use its results. */
void hopper_emit_operands(struct kernel_source *source, const struct hopper *h) {
    for (int f = 0; f < OPERANDS; f++) {
        char letter = "AB"[f];
        emit_constant(source, named("%c_IS_MN_MAJOR", letter).text, !h->view[f].is_k_major);
    }
    emit_constant(source, "STORED_BYTES", stored_bytes(h));
    if (h->c.prologue_count > 0)
        emit_constant(source, "A_IS_IMAGE", h->view[OPERAND_A].is_image);
    emit_constant(source, "K_IS_PIXELS", h->k_is_pixels);
    emit_constant(source, "HAS_TAPS", h->taps[0] * h->taps[1] * h->taps[2] > 1 || h->c.phase_count > 0);
    emit_constant(source, "HAS_PHASES", h->c.phase_count > 0);
    emit_constant(source, "HAS_GROUPS", 0);
    emit_constant(source, "HAS_OVERRIDES", contraction_has_overrides(&h->c));
    emit_number(source, h->channels, "channels");
    if (h->c.phase_count)
        emit_number(source, divide_up(h->channels * stored_bytes(h), HOPPER_K_BYTES), "blocks");
    text_add(&source->code, "#include \"product/hopper/coordinates.cuh\"\n\n");
    emit_find_entry(source, h);
    for (int f = 0; f < OPERANDS; f++)
        emit_load(source, h, f);
}

/* ---- The wgmma instruction --------------------------------------------------------------------------------------- */

/* Returns the PTX name of the type. */
static const char *wgmma_type(weftDataType_t stored) {
    return stored == WEFT_DATA_FLOAT ? "tf32" : stored == WEFT_DATA_INT8 ? "s8" : cuda_type_name(stored);
}

/* The instruction multiplies 64 rows x columns x 32 bytes of k. Operands of the asm are the accumulators, then A, B and
   `adds`, which is 0 to ignore the old accumulators, so that they need not be cleared. */
void wgmma_emit(struct text *code, int columns, weftDataType_t a, weftDataType_t b, enum wgmma_a from,
                bool b_is_mn_major) {
    /* Accumulators per thread: 64 x columns over 128 threads. */
    int count = columns / 2, bytes = (int)dtype_bytes(a, 1), words = from == WGMMA_A_REGISTERS ? 4 : 1;
    bool is_whole = dtype_is_integer(a);
    text_add(code,
             "DEVICE void multiply_accumulate(sum_t (&c)[%d], %s, u64 b, u32 adds) {\n"
             "    asm volatile(\"{ .reg .pred p; setp.ne.b32 p, %%%d, 0;\"\n"
             "        \" wgmma.mma_async.sync.aligned.m64n%dk%d.%s.%s.%s {",
             count, from == WGMMA_A_REGISTERS ? "const u32 (&a)[4]" : "u64 a", count + words + 1, columns, 32 / bytes,
             is_whole ? "s32" : "f32", wgmma_type(a), wgmma_type(b));
    for (int i = 0; i < count; i++)
        text_add(code, "%s%%%d", i ? "," : "", i);
    if (from == WGMMA_A_REGISTERS)
        text_add(code, "}, {%%%d,%%%d,%%%d,%%%d}, %%%d, p, 1, 1, %d", count, count + 1, count + 2, count + 3, count + 4,
                 b_is_mn_major);
    else
        text_add(code, "}, %%%d, %%%d, p%s", count, count + 1, is_whole ? "" : ", 1, 1");
    if (from != WGMMA_A_REGISTERS && bytes == 2) /* other types are K-major */
        text_add(code, ", %d, %d", from == WGMMA_A_MN_MAJOR, b_is_mn_major);
    text_add(code, "; }\"\n        : ");
    for (int i = 0; i < count; i++)
        text_add(code, "%s\"+%s\"(c[%d])", i ? ", " : "", is_whole ? "r" : "f", i);
    text_add(code, "\n        : %s, \"l\"(b), \"r\"(adds));\n}\n\n",
             from == WGMMA_A_REGISTERS ? "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])" : "\"l\"(a)");
}
