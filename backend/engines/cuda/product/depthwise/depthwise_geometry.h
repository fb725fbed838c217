/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of the depthwise kernels, and the inputs under their outputs: see index_map.cuh. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_DEPTHWISE_DEPTHWISE_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_DEPTHWISE_DEPTHWISE_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

/* The tile of depthwise_mma: 16 lines of 8 outputs, under 16 inputs, and the padding between lines, pixels and planes
   that avoids bank conflicts. */
enum { MMA_LINES = 16, MMA_STRIP = 8, MMA_DEPTH = 16, LINE_PAD = 1, PIXEL_PAD = 4, PLANE_PAD = 8 };

/* Inputs from the first to the last tap of `outputs` adjacent outputs. span: from the first to the last tap of one. */
GEOMETRY long long inputs_under(long long outputs, long long step, long long span, long long spread) {
    return ((outputs - 1) * step + span - 1) / spread + 1;
}

/* Elements between the channels of a row. If they are not last, the pitch is an odd number of words, so that lanes of
   adjacent channels have no bank conflicts. element: in bytes. */
GEOMETRY long long band_channel_pitch(long long columns, int channels_last, int element) {
    int word = element < 4 ? 4 / element : 1;
    return channels_last ? 1 : (geometry_divide_up(columns, word) | 1) * word;
}

GEOMETRY long long band_row_pitch(long long columns, long long channels, int channels_last, int element) {
    return channels * (channels_last ? columns : band_channel_pitch(columns, channels_last, element));
}

/* A band of an image: rows of pixels of all channels of a block. pad: elements between planes. */
GEOMETRY long long band_elements(long long planes, long long rows, long long row_pitch, long long pad) {
    return planes * (rows * row_pitch + pad);
}

struct depthwise_shape {
    int is_mma, channels_last;
    int image_element, loss_element; /* bytes; loss_element: 0 unless the gradient of the filter is computed */
    long long planes, input_rows, input_columns, band_periods, tile_w, channels, taps, stages;
};

struct depthwise_memory {
    long long stage_bytes, bytes; /* bytes per stage and per block */
};

/* A stage is a band of the image and, for filter gradients, the rows of dy that are combined with it. The taps are
   loaded through the memory of the stages, where each channel has an odd pitch; sums of the tensor cores are stored
   through separate memory. */
GEOMETRY struct depthwise_memory depthwise_memory_of(struct depthwise_shape s) {
    struct depthwise_memory m = {0};
    long long image_row = band_row_pitch(s.input_columns, s.channels, s.channels_last, s.image_element);
    long long image = band_elements(s.planes, s.input_rows, image_row, s.is_mma ? PLANE_PAD : 0) * s.image_element;
    m.stage_bytes = geometry_round_up(image, 16);
    if (s.loss_element) {
        long long loss_row = band_row_pitch(s.tile_w, s.channels, s.channels_last, s.loss_element);
        m.stage_bytes += geometry_round_up(band_elements(1, s.band_periods, loss_row, 0) * s.loss_element, 16);
    }
    long long taps = s.channels * (s.taps | 1) * 4;
    long long rows = 2 * MMA_LINES * (MMA_STRIP + LINE_PAD) * (s.channels + PIXEL_PAD) * 4;
    m.bytes = geometry_round_up(geometry_max(s.stages * m.stage_bytes, taps), 16) + (s.is_mma ? rows : 0);
    return m;
}

#endif
