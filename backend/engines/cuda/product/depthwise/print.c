/* SPDX-License-Identifier: Apache-2.0 */
/* Text and arguments of the depthwise family's kernels: product/depthwise/depthwise.cuh makes images,
   product/depthwise/depthwise_mma.cuh those of 16 bits by tensor cores, product/depthwise/depthwise_wgrad.cuh filters.
   It must not know how blocks are chosen. */
#include "engines/cuda/product/depthwise/depthwise.h"

/* Constants: what registers and loops are made of. */
static void print_structure(struct kernel_print *print, const struct depthwise *d) {
    static const char letters[] = "DHW";
    const struct axis *depth = &d->axes[DEPTH_AXIS];
    for (int i = 0; i < AXES; i++) {
        const struct axis *axis = &d->axes[i];
        print_constant(print, named("TAPS_%c", letters[i]).text, axis->taps);
        /* There are few planes, taken one by one: their steps are arguments. */
        if (i == DEPTH_AXIS)
            continue;
        print_constant(print, named("STEP_%c", letters[i]).text, axis->step);
        print_constant(print, named("SPREAD_%c", letters[i]).text, axis->spread);
        print_constant(print, named("DILATION_%c", letters[i]).text, axis->dilation);
    }
    print_constant(print, "HAS_DEPTH", depth->taps != 1 || depth->in != 1 || depth->out != 1 || depth->pre != 0);
    print_constant(print, "STRIP", d->strip);
    print_constant(print, "STRIPS", d->strips);
    print_constant(print, "CHANNELS", d->channels);
    print_constant(print, "CHANNELS_LAST", d->is_channels_last);
    print_constant(print, "IMAGE_RUN", d->image_run);
    print_constant(print, "BAND_PERIODS", d->band_periods);
    print_constant(print, "UNROLLED", d->unrolled);
    print_constant(print, "STAGES", d->stages);
    print_constant(print, "THREADS", d->threads);
    print_constant(print, "BLOCKS", d->blocks);
}

/* Type, pointer and strides in elements: <name>_n of images, _c of channels, _d, _h, _w of positions. */
static void print_operand(struct kernel_print *print, const struct depthwise *d, const struct conv_operand *operand,
                          const char *name) {
    static const char letters[] = "dhw";
    const struct tensor *tensor = operand->tensor;
    print_type(print, named("%s_t", name).text, (weftDataType_t)tensor->type);
    print_pointer(print, (weftDataType_t)tensor->type, graph_find_value(d->c.region->graph, tensor), 0, name);
    print_number(print, operand->outer_stride, named("%s_n", name).text);
    print_number(print, operand->group_stride, named("%s_c", name).text);
    for (int i = 0; i < AXES; i++)
        print_number(print, operand->size_stride[i], named("%s_%c", name, letters[i]).text);
}

/* Arguments: sizes, and divisors that find a block's patch. */
static void print_geometry(struct kernel_print *print, const struct depthwise *d) {
    static const char *const names[] = {"depth", "height", "width"};
    const struct axis *depth = &d->axes[DEPTH_AXIS], *height = &d->axes[HEIGHT_AXIS], *width = &d->axes[WIDTH_AXIS];
    for (int i = 0; i < AXES; i++) {
        print_number(print, d->axes[i].in, named("%s_in", names[i]).text);
        print_number(print, d->axes[i].out, named("%s_out", names[i]).text);
    }
    print_number(print, depth->step, "step_d");
    print_number(print, depth->spread, "spread_d");
    print_number(print, depth->dilation, "dilation_d");
    print_number(print, depth->pre, "pre_d");
    print_number(print, height->pre, "pre_h");
    print_number(print, width->pre, "pre_w");
    /* Columns before the first of the image that the first strip has, see strips_across. */
    print_number(print, wrap(-width->pre, width->spread), "shift_w");
    print_number(print, d->segment_rows, "segment_rows");
    print_number(print, d->g.groups, "channels");
    print_number(print, d->g.n, "images");
    print_divisor(print, d->channel_blocks, "channel_blocks");
    print_divisor(print, d->tiles, "tiles_w");
    print_divisor(print, d->segments, "segments");
    print_divisor(print, depth->out, "depths");
}

/* The data gradient meets the taps in reverse, and so does a flipped filter. Strides are negated and the first tap is
   the last one, so that kernels know of no direction. */
static void print_taps(struct kernel_print *print, const struct depthwise *d) {
    static const char letters[] = "dhw";
    const struct conv_operand *w = &d->g.w;
    bool is_reversed = d->g.flip != (d->g.direction == CONV_DATA);
    int64_t first = 0;
    print_pointer(print, (weftDataType_t)w->tensor->type, graph_find_value(d->c.region->graph, w->tensor), 0, "filter");
    for (int i = 0; i < AXES; i++) {
        first += is_reversed ? (w->size[i] - 1) * w->size_stride[i] : 0;
        print_number(print, is_reversed ? -w->size_stride[i] : w->size_stride[i], named("filter_%c", letters[i]).text);
    }
    print_number(print, w->group_stride, "filter_c");
    print_number(print, first, "filter_first");
}

/* By direction: images (forward and data gradients, with or without tensor cores) or filters. */
weftStatus_t depthwise_print(struct cuda_kernel *kernel, struct depthwise *d, struct arena *arena) {
    struct kernel_print print;
    if (!is_filter(d) && (!d->is_mma || d->c.epilogue.lead == ROW))
        d->c.epilogue.run = 1; /* a thread has no neighbours but along the width, and these in registers */
    kernel_print_init(&print, d->c.region);
    text_add(&print.constants, "using sum_t = float;\nusing index = u32;\n");
    text_add(&print.code, "#include \"core/gather.cuh\"\n\n");
    print_constant(&print, "LEAD_IS_ROW", d->c.epilogue.lead == ROW);
    print_structure(&print, d);
    print_operand(&print, d, d->image, "image");
    print_geometry(&print, d);
    /* What else is read: dy, or the filter's taps. */
    if (is_filter(d)) {
        print_operand(&print, d, &d->g.y, "loss");
        print_constant(&print, "LOSS_RUN", d->loss_run);
        print_constant(&print, "IS_FLIPPED", d->g.flip);
        print_number(&print, d->patches, "patches");
    } else {
        print_taps(&print, d);
    }
    /* Filter gradients leave partial sums, others results. */
    contraction_print_epilogue(&print, &d->c);
    if (is_filter(d))
        TRY(kernel_finish(&print, kernel, "product/depthwise/depthwise_wgrad.cuh", "depthwise_wgrad", arena));
    else if (d->is_mma)
        TRY(kernel_finish(&print, kernel, "product/depthwise/depthwise_mma.cuh", "depthwise_mma", arena));
    else
        TRY(kernel_finish(&print, kernel, "product/depthwise/depthwise.cuh", "depthwise", arena));
    return WEFT_STATUS_SUCCESS;
}
