/* pixels: images of at most 8 channels in shared memory, with 16 bytes per pixel whatever the number of channels: one
   row of ldmatrix. Columns are sorted by their remainder modulo the stride, so that the pixels that adjacent outputs
   read at the same tap are adjacent, too. */

#include "engines/cuda/product/stem/stem_geometry.h"

/* Channels after the image's own are zeros. */
template <class T> using pixel = run<T, PIXEL>;

template <class T> struct channels_image {
    const T *first; /* address of this image */
    i64 stride_h, stride_w, stride_c;
    i32 height, width;
};

/* Loads one pixel into shared memory, zeros if not `inside`; RUN 8: in one copy. */
template <int RUN, class T> DEVICE void load_pixel(pixel<T> *to, const T *from, i64 stride_c, bool inside) {
    if constexpr (RUN == PIXEL) {
        copy_async<16>(to, from, inside);
    } else {
        pixel<T> r = {};
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            if (inside)
                r.at[c] = from[c * stride_c];
        *to = r;
    }
}

template <class T, int RUN, int ROWS, int COLUMNS, int STRIDE> struct pixel_patch {
    static constexpr int PLANE = (COLUMNS + STRIDE - 1) / STRIDE, PITCH = PLANE * STRIDE;
    pixel<T> at[stem_pixels(ROWS, COLUMNS, STRIDE)];

    static constexpr DEVICE int offset(int row, int column) {
        return row * PITCH + column % STRIDE * PLANE + column / STRIDE;
    }

    /* Loads the patch that starts at row, column of the image, with zeros outside. A warp loads a row at a time. */
    template <int THREADS> DEVICE void load(const channels_image<T> &x, i32 row, i32 column) {
        for (int i = threadIdx.x / 32; i < ROWS; i += THREADS / 32) {
            const bool is_row = (u32)(row + i) < (u32)x.height;
            const T *from = x.first + (is_row ? (row + i) * x.stride_h + column * x.stride_w : 0);
#pragma unroll
            for (int j = threadIdx.x % 32; j < COLUMNS; j += 32)
                load_pixel<RUN>(&at[offset(i, j)], from + j * x.stride_w, x.stride_c,
                                is_row && (u32)(column + j) < (u32)x.width);
        }
    }
};

/* A patch of an image with many channels, FILTERS of them: [row][column][channel]. */
template <class T, int RUN, int FILTERS, int ROWS, int COLUMNS> struct filter_patch {
    static constexpr int PITCH = FILTERS + PITCH_PAD;
    alignas(16) T at[stem_loss_elements(ROWS, COLUMNS, FILTERS)];

    static constexpr DEVICE int offset(int row, int column) { return (row * COLUMNS + column) * PITCH; }

    /* Like pixel_patch::load, for an image of `channels` channels. */
    template <int THREADS> DEVICE void load(const channels_image<T> &x, i32 channels, i32 row, i32 column) {
        constexpr int GROUPS = FILTERS / RUN;
        for (int i = threadIdx.x / 32; i < ROWS; i += THREADS / 32) {
            const bool is_row = (u32)(row + i) < (u32)x.height;
            const T *from = x.first + (is_row ? (row + i) * x.stride_h + column * x.stride_w : 0);
#pragma unroll 4
            for (int e = threadIdx.x % 32; e < COLUMNS * GROUPS; e += 32) {
                const int j = e / GROUPS, k = e % GROUPS * RUN;
                const bool inside = is_row && (u32)(column + j) < (u32)x.width && k < channels;
                const T *source = from + (j * x.stride_w + k * x.stride_c);
                T *to = &at[offset(i, j) + k];
                if constexpr (RUN == 8)
                    copy_async<16>(to, source, inside);
                else
                    *to = inside ? *source : T{};
            }
        }
    }
};
