/* SPDX-License-Identifier: Apache-2.0 */
/* Text and arguments of the stem family's kernels. It must not know how tiles are chosen. */
#include "base/number.h"
#include "engines/cuda/product/stem/stem.h"

/* Whether 8 neighbouring channels of an operand can be copied at a time: they lie side by side, aligned, and nothing
   else is nearer. Then a pixel is one asynchronous copy of 16 bytes; else channels come one by one. */
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

/* Constants: what registers and loops are made of. Taps are unrolled, so filter, stride and dilation are text; other
   filters compile anew. */
static void print_structure(struct kernel_print *print, const struct stem *s) {
    static const char *const letters = " HW";
    const struct conv_geometry *g = &s->g;
    for (int i = HEIGHT; i <= WIDTH; i++) {
        print_constant(print, named("TAPS_%c", letters[i]).text, g->w.size[i]);
        print_constant(print, named("STRIDE_%c", letters[i]).text, g->stride[i]);
        print_constant(print, named("DILATION_%c", letters[i]).text, g->dilation[i]);
    }
    print_constant(print, "CHANNELS", g->c);
    print_constant(print, "TILE_P", s->tile->rows);
    print_constant(print, "TILE_Q", s->tile->columns);
    print_constant(print, "FILTERS", s->filters);
    print_constant(print, "WARPS", s->warps);
    print_constant(print, "BLOCKS", s->blocks);
    print_type(print, "in_t", (weftDataType_t)s->c.operand[OPERAND_A].tensor->type);
}

/* Pointer and strides in elements, named <name>_<dimension>. A flipped filter starts at its last tap, and its strides
   are negative, so that kernels know of no flip. */
static void print_operand(struct kernel_print *print, const struct stem *s, const struct conv_operand *operand,
                          const char *name, char outer, char channel) {
    const struct tensor *tensor = operand->tensor;
    bool is_reversed = operand == &s->g.w && s->g.flip;
    int64_t first = 0, sign = is_reversed ? -1 : 1;
    for (int i = HEIGHT; i <= WIDTH; i++)
        first += is_reversed ? (operand->size[i] - 1) * operand->size_stride[i] : 0;
    print_pointer(print, (weftDataType_t)tensor->type, graph_find_value(s->c.region->graph, tensor),
                  first * dtype_bytes((weftDataType_t)tensor->type, 1), name);
    print_number(print, operand->outer_stride, named("%s_%c", name, outer).text);
    print_number(print, operand->channel_stride, named("%s_%c", name, channel).text);
    print_number(print, sign * operand->size_stride[HEIGHT], named("%s_h", name).text);
    print_number(print, sign * operand->size_stride[WIDTH], named("%s_w", name).text);
}

/* Arguments: sizes, and divisors that find a tile. A tile's number splits into filters, row and column of tiles, and
   image. */
static void print_geometry(struct kernel_print *print, const struct stem *s) {
    const struct conv_geometry *g = &s->g;
    print_number(print, g->x.size[HEIGHT], "height");
    print_number(print, g->x.size[WIDTH], "width");
    print_number(print, g->y.size[HEIGHT], "rows");
    print_number(print, g->y.size[WIDTH], "columns");
    print_number(print, g->k, "filters");
    print_number(print, g->pre[HEIGHT], "pre_h");
    print_number(print, g->pre[WIDTH], "pre_w");
    print_number(print, s->first[HEIGHT], "first_row");
    print_number(print, s->first[WIDTH], "first_column");
    print_number(print, s->tiles, "tiles");
    print_divisor(print, s->filter_tiles, "filter_tiles");
    print_divisor(print, s->tiles_p, "tiles_p");
    print_divisor(print, s->tiles_q, "tiles_q");
}

weftStatus_t stem_print(struct cuda_kernel *kernel, const struct stem *s, struct arena *arena) {
    static const char *const files[] = {[CONV_FORWARD] = "product/stem/stem.cuh",
                                        [CONV_DATA] = "product/stem/stem_dgrad.cuh",
                                        [CONV_FILTER] = "product/stem/stem_wgrad.cuh"};
    static const char *const entries[] = {
        [CONV_FORWARD] = "stem", [CONV_DATA] = "stem_dgrad", [CONV_FILTER] = "stem_wgrad"};
    const struct conv_geometry *g = &s->g;
    struct kernel_print print;
    kernel_print_init(&print, s->c.region);
    /* Results are fewer than 2^31: the epilogue's indices are u32. */
    text_add(&print.constants, "using sum_t = float;\nusing index = u32;\n");
    text_add(&print.code, "#include \"core/gather.cuh\"\n\n");
    print_constant(&print, "LEAD_IS_ROW", s->c.epilogue.lead == ROW);
    print_structure(&print, s);
    print_geometry(&print, s);
    /* Forward reads x and w, the data gradient w and dy (loss), the filter gradient x and dy. */
    if (g->direction != CONV_DATA) {
        print_operand(&print, s, &g->x, "x", 'n', 'c');
        print_constant(&print, "IMAGE_RUN", run_of(&g->x, g->c));
    }
    if (g->direction != CONV_FILTER) {
        print_operand(&print, s, &g->w, "w", 'k', 'c');
        print_constant(&print, "FILTER_RUN", run_of(&g->w, g->c));
    } else {
        print_constant(&print, "IS_FLIPPED", g->flip);
        print_constant(&print, "STAGES", s->stages);
    }
    if (g->direction != CONV_FORWARD) {
        print_operand(&print, s, &g->y, "loss", 'n', 'k');
        print_constant(&print, "LOSS_RUN", run_of(&g->y, g->k));
    }
    contraction_print_epilogue(&print, &s->c);
    return kernel_finish(&print, kernel, files[g->direction], entries[g->direction], arena);
}
