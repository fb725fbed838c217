/* SPDX-License-Identifier: Apache-2.0 */
/* Generates code and arguments of the stem family's kernels. This file must not know how tiles are chosen. */
#include "base/number.h"
#include "engines/cuda/product/stem/stem.h"

/* True if 8 adjacent channels of an operand can be copied at a time: they are contiguous and aligned, and all other
   strides are multiples of 8. A pixel is then one asynchronous copy of 16 bytes; otherwise each channel is copied
   separately. */
static bool has_runs(const struct conv_operand *operand, int64_t channels) {
    int64_t steps = gcd64(channels, operand->outer_stride);
    for (int i = HEIGHT; i <= WIDTH; i++)
        steps = gcd64(steps, operand->size_stride[i]);
    return operand->channel_stride == 1 && operand->tensor->alignment % PIXEL_BYTES == 0 && steps % CHANNELS_MAX == 0;
}

/* Channels per copy. */
static int run_of(const struct conv_operand *operand, int64_t channels) {
    return has_runs(operand, channels) ? CHANNELS_MAX : 1;
}

/* Constants that determine registers and loops. Taps are unrolled, so filter, stride and dilation are part of the text,
   and each filter size requires a separate compilation. */
static void emit_structure(struct kernel_source *source, const struct stem *s) {
    static const char *const letters = " HW";
    const struct conv_geometry *g = &s->g;
    for (int i = HEIGHT; i <= WIDTH; i++) {
        emit_constant(source, named("TAPS_%c", letters[i]).text, g->w.size[i]);
        emit_constant(source, named("STRIDE_%c", letters[i]).text, g->stride[i]);
        emit_constant(source, named("DILATION_%c", letters[i]).text, g->dilation[i]);
    }
    emit_constant(source, "CHANNELS", g->c);
    emit_constant(source, "TILE_P", s->tile->rows);
    emit_constant(source, "TILE_Q", s->tile->columns);
    emit_constant(source, "FILTERS", s->filters);
    emit_constant(source, "WARPS", s->warps);
    emit_constant(source, "BLOCKS", s->blocks);
    emit_type(source, "in_t", (weftDataType_t)s->c.operand[OPERAND_A].tensor->type);
}

/* Pointer and strides in elements, named <name>_<dimension>. A flipped filter starts at its last tap with negative
   strides, so that kernels need not know about flips. */
static void emit_operand(struct kernel_source *source, const struct stem *s, const struct conv_operand *operand,
                         const char *name, char outer, char channel) {
    const struct tensor *tensor = operand->tensor;
    bool is_reversed = operand == &s->g.w && s->g.flip;
    int64_t first = 0, sign = is_reversed ? -1 : 1;
    for (int i = HEIGHT; i <= WIDTH; i++)
        first += is_reversed ? (operand->size[i] - 1) * operand->size_stride[i] : 0;
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(s->c.region->graph, tensor),
                 first * dtype_bytes((weftDataType_t)tensor->type, 1), name);
    emit_number(source, operand->outer_stride, named("%s_%c", name, outer).text);
    emit_number(source, operand->channel_stride, named("%s_%c", name, channel).text);
    emit_number(source, sign * operand->size_stride[HEIGHT], named("%s_h", name).text);
    emit_number(source, sign * operand->size_stride[WIDTH], named("%s_w", name).text);
}

/* Arguments: sizes, and the divisors that decode the number of a tile into filters, row and column of tiles, and
   image. */
static void emit_geometry(struct kernel_source *source, const struct stem *s) {
    const struct conv_geometry *g = &s->g;
    emit_number(source, g->x.size[HEIGHT], "height");
    emit_number(source, g->x.size[WIDTH], "width");
    emit_number(source, g->y.size[HEIGHT], "rows");
    emit_number(source, g->y.size[WIDTH], "columns");
    emit_number(source, g->k, "filters");
    emit_number(source, g->pre[HEIGHT], "pre_h");
    emit_number(source, g->pre[WIDTH], "pre_w");
    emit_number(source, s->first[HEIGHT], "first_row");
    emit_number(source, s->first[WIDTH], "first_column");
    emit_number(source, s->tiles, "tiles");
    emit_divisor(source, s->filter_tiles, "filter_tiles");
    emit_divisor(source, s->tiles_p, "tiles_p");
    emit_divisor(source, s->tiles_q, "tiles_q");
}

weftStatus_t stem_emit(struct cuda_kernel *kernel, const struct stem *s, struct arena *arena) {
    static const char *const files[] = {[CONV_FORWARD] = "product/stem/stem.cuh",
                                        [CONV_DATA] = "product/stem/stem_dgrad.cuh",
                                        [CONV_FILTER] = "product/stem/stem_wgrad.cuh"};
    static const char *const entries[] = {
        [CONV_FORWARD] = "stem", [CONV_DATA] = "stem_dgrad", [CONV_FILTER] = "stem_wgrad"};
    const struct conv_geometry *g = &s->g;
    struct kernel_source source;
    kernel_source_init(&source, s->c.region);
    /* There are fewer than 2^31 results, so the epilogue's indices are u32. */
    text_add(&source.constants, "using sum_t = float;\nusing index = u32;\n");
    text_add(&source.code, "#include \"core/gather.cuh\"\n\n");
    emit_constant(&source, "LEAD_IS_ROW", s->c.epilogue.lead == ROW);
    emit_structure(&source, s);
    emit_geometry(&source, s);
    /* Forward reads x and w, the data gradient w and dy (loss), the filter gradient x and dy. */
    if (g->direction != CONV_DATA) {
        emit_operand(&source, s, &g->x, "x", 'n', 'c');
        emit_constant(&source, "IMAGE_RUN", run_of(&g->x, g->c));
    }
    if (g->direction != CONV_FILTER) {
        emit_operand(&source, s, &g->w, "w", 'k', 'c');
        emit_constant(&source, "FILTER_RUN", run_of(&g->w, g->c));
    } else {
        emit_constant(&source, "IS_FLIPPED", g->flip);
        emit_constant(&source, "STAGES", s->stages);
    }
    if (g->direction != CONV_FORWARD) {
        emit_operand(&source, s, &g->y, "loss", 'n', 'k');
        emit_constant(&source, "LOSS_RUN", run_of(&g->y, g->k));
    }
    contraction_emit_epilogue(&source, &s->c);
    return kernel_finish(&source, kernel, files[g->direction], entries[g->direction], arena);
}
