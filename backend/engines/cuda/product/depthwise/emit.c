/* SPDX-License-Identifier: Apache-2.0 */
/* Code generation for the depthwise family: product/depthwise/depthwise.cuh computes images,
   product/depthwise/depthwise_mma.cuh 16-bit images on tensor cores, and product/depthwise/depthwise_wgrad.cuh filters.
   This file must not know how blocks are chosen. */
#include "engines/cuda/product/depthwise/depthwise.h"

/* Constants that determine registers and loops. */
static void emit_structure(struct kernel_source *source, const struct depthwise *d) {
    static const char letters[] = "DHW";
    const struct axis *depth = &d->axes[DEPTH_AXIS];
    for (int i = 0; i < AXES; i++) {
        const struct axis *axis = &d->axes[i];
        emit_constant(source, named("TAPS_%c", letters[i]).text, axis->taps);
        /* There are few planes, which are processed one at a time, so their steps are arguments. */
        if (i == DEPTH_AXIS)
            continue;
        emit_constant(source, named("STEP_%c", letters[i]).text, axis->step);
        emit_constant(source, named("SPREAD_%c", letters[i]).text, axis->spread);
        emit_constant(source, named("DILATION_%c", letters[i]).text, axis->dilation);
    }
    emit_constant(source, "HAS_DEPTH", depth->taps != 1 || depth->in != 1 || depth->out != 1 || depth->pre != 0);
    emit_constant(source, "STRIP", d->strip);
    emit_constant(source, "STRIPS", d->strips);
    emit_constant(source, "CHANNELS", d->channels);
    emit_constant(source, "CHANNELS_LAST", d->is_channels_last);
    emit_constant(source, "IMAGE_RUN", d->image_run);
    emit_constant(source, "BAND_PERIODS", d->band_periods);
    emit_constant(source, "UNROLLED", d->unrolled);
    emit_constant(source, "STAGES", d->stages);
    emit_constant(source, "THREADS", d->threads);
    emit_constant(source, "BLOCKS", d->blocks);
}

/* Emits the type, the pointer and the strides in elements: <name>_n of images, _c of channels, _d, _h, _w of
   positions. */
static void emit_operand(struct kernel_source *source, const struct depthwise *d, const struct conv_operand *operand,
                         const char *name) {
    static const char letters[] = "dhw";
    const struct tensor *tensor = operand->tensor;
    emit_type(source, named("%s_t", name).text, (weftDataType_t)tensor->type);
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(d->c.region->graph, tensor), 0, name);
    emit_number(source, operand->outer_stride, named("%s_n", name).text);
    emit_number(source, operand->group_stride, named("%s_c", name).text);
    for (int i = 0; i < AXES; i++)
        emit_number(source, operand->size_stride[i], named("%s_%c", name, letters[i]).text);
}

/* Arguments: sizes, and the divisors that decode a block's patch. */
static void emit_geometry(struct kernel_source *source, const struct depthwise *d) {
    static const char *const names[] = {"depth", "height", "width"};
    const struct axis *depth = &d->axes[DEPTH_AXIS], *height = &d->axes[HEIGHT_AXIS], *width = &d->axes[WIDTH_AXIS];
    for (int i = 0; i < AXES; i++) {
        emit_number(source, d->axes[i].in, named("%s_in", names[i]).text);
        emit_number(source, d->axes[i].out, named("%s_out", names[i]).text);
    }
    emit_number(source, depth->step, "step_d");
    emit_number(source, depth->spread, "spread_d");
    emit_number(source, depth->dilation, "dilation_d");
    emit_number(source, depth->pre, "pre_d");
    emit_number(source, height->pre, "pre_h");
    emit_number(source, width->pre, "pre_w");
    /* Columns of the first strip that are before the image; see strips_across. */
    emit_number(source, wrap(-width->pre, width->spread), "shift_w");
    emit_number(source, d->segment_rows, "segment_rows");
    emit_number(source, d->g.groups, "channels");
    emit_number(source, d->g.n, "images");
    emit_divisor(source, d->channel_blocks, "channel_blocks");
    emit_divisor(source, d->tiles, "tiles_w");
    emit_divisor(source, d->segments, "segments");
    emit_divisor(source, depth->out, "depths");
}

/* The data gradient uses the taps in reverse, and so does a flipped filter. The strides are then negated and the first
   tap is the last one, so that kernels need not distinguish directions. */
static void emit_taps(struct kernel_source *source, const struct depthwise *d) {
    static const char letters[] = "dhw";
    const struct conv_operand *w = &d->g.w;
    bool is_reversed = d->g.flip != (d->g.direction == CONV_DATA);
    int64_t first = 0;
    emit_pointer(source, (weftDataType_t)w->tensor->type, graph_find_value(d->c.region->graph, w->tensor), 0, "filter");
    for (int i = 0; i < AXES; i++) {
        first += is_reversed ? (w->size[i] - 1) * w->size_stride[i] : 0;
        emit_number(source, is_reversed ? -w->size_stride[i] : w->size_stride[i], named("filter_%c", letters[i]).text);
    }
    emit_number(source, w->group_stride, "filter_c");
    emit_number(source, first, "filter_first");
}

/* Chooses the kernel by direction: images (forward and data gradients, with or without tensor cores) or filters. */
weftStatus_t depthwise_emit(struct cuda_kernel *kernel, struct depthwise *d, struct arena *arena) {
    struct kernel_source source;
    if (!is_filter(d) && (!d->is_mma || d->c.epilogue.lead == ROW))
        d->c.epilogue.run = 1; /* the elements that a thread holds are adjacent only along the width */
    kernel_source_init(&source, d->c.region);
    text_add(&source.constants, "using sum_t = float;\nusing index = u32;\n");
    text_add(&source.code, "#include \"core/gather.cuh\"\n\n");
    emit_constant(&source, "LEAD_IS_ROW", d->c.epilogue.lead == ROW);
    emit_structure(&source, d);
    emit_operand(&source, d, d->image, "image");
    emit_geometry(&source, d);
    /* The other input: dy, or the filter's taps. */
    if (is_filter(d)) {
        emit_operand(&source, d, &d->g.y, "loss");
        emit_constant(&source, "LOSS_RUN", d->loss_run);
        emit_constant(&source, "IS_FLIPPED", d->g.flip);
        emit_number(&source, d->patches, "patches");
    } else {
        emit_taps(&source, d);
    }
    /* Filter gradients store partial sums, the others results. */
    contraction_emit_epilogue(&source, &d->c);
    if (is_filter(d))
        TRY(kernel_finish(&source, kernel, "product/depthwise/depthwise_wgrad.cuh", "depthwise_wgrad", arena));
    else if (d->is_mma)
        TRY(kernel_finish(&source, kernel, "product/depthwise/depthwise_mma.cuh", "depthwise_mma", arena));
    else
        TRY(kernel_finish(&source, kernel, "product/depthwise/depthwise.cuh", "depthwise", arena));
    return WEFT_STATUS_SUCCESS;
}
