/* index_map: positions that depthwise convolutions read and write
   Lattice   along each dimension, output o is at position o * STEP, its taps are at that position and at multiples of
             DILATION after it, and input i is at i * SPREAD + pre. STEP is the stride of a forward convolution, SPREAD
             that of a data gradient; one of them is 1
   Loop      a block iterates over the rows of this lattice in periods, each with the same pattern of inputs, taps and
             outputs, and over bands of the image in shared memory, of BAND_PERIODS periods each, UNROLLED of them at a
             time
   Params    all names below that are not defined here */

#include "engines/cuda/product/depthwise/depthwise_geometry.h"

constexpr DEVICE int wrap(int n, int size) { return (n % size + size) % size; }
constexpr DEVICE int divide_down(int n, int by) { return (n - wrap(n, by)) / by; }

constexpr int SPAN_H = (TAPS_H - 1) * DILATION_H + 1, SPAN_W = (TAPS_W - 1) * DILATION_W + 1;
constexpr int TAPS = TAPS_D * TAPS_H * TAPS_W;
constexpr int PERIOD = STEP_H > SPREAD_H ? STEP_H : SPREAD_H;
/* Output rows that a period completes, and those in progress: slot i is output period * COMPLETED - BACK + i. */
constexpr int COMPLETED = PERIOD / STEP_H, BACK = (SPAN_H - 1 + STEP_H - 1) / STEP_H, SLOTS = BACK + COMPLETED;
constexpr int PERIOD_INPUTS = PERIOD / SPREAD_H, INPUT_ROWS = PERIOD_INPUTS * BAND_PERIODS;
/* STRIP adjacent outputs of a channel are computed together; STRIPS of them are a row of the block. */
constexpr int TILE_W = STRIPS * STRIP;
constexpr int STRIP_INPUTS = inputs_under(STRIP, STEP_W, SPAN_W, SPREAD_W);
constexpr int INPUT_COLUMNS = inputs_under(TILE_W, STEP_W, SPAN_W, SPREAD_W);
static_assert(STRIP * STEP_W % SPREAD_W == 0, "every strip sees the same pattern");
static_assert(THREADS % 32 == 0, "a warp loads a line");

/* For row u of a period: whether it has a tap of an output at this distance, and the slot of that output. */
constexpr DEVICE bool has_output(int u, int distance) { return wrap(u - distance, STEP_H) == 0; }
constexpr DEVICE int slot_of(int u, int distance) { return divide_down(u - distance, STEP_H) + BACK; }

/* Moves the rows of sums up when a period starts. If SLOTS / COMPLETED periods are unrolled, this only renames
   registers. */
template <class R> DEVICE void shift_rows(R (&rows)[SLOTS]) {
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
#pragma unroll
        for (int e = 0; e < (int)(sizeof(R) / sizeof(float)); e++)
            ((float *)rows[i])[e] =
                i + COMPLETED < SLOTS ? ((float *)rows[i + COMPLETED < SLOTS ? i + COMPLETED : i])[e] : 0.0f;
}

/* The channel and the strip of this thread in the block: adjacent threads of a warp access adjacent memory. */
DEVICE int own_channel() { return CHANNELS_LAST ? (int)threadIdx.x % CHANNELS : (int)threadIdx.x / STRIPS; }
DEVICE int own_strip() { return CHANNELS_LAST ? (int)threadIdx.x / CHANNELS : (int)threadIdx.x % STRIPS; }

/* ---- The part of the result that a block computes at a time ---- */

struct patch {
    u32 n;
    i32 depth;      /* depth position in the output */
    i32 begin, end; /* output rows */
    i32 column;     /* output column of the first strip; may be before the image if SPREAD_W is above 1 */
    i32 top;        /* output row, at or before begin, whose lattice row starts a period */
};

DEVICE patch find_patch(const arguments &p, u32 number) {
    patch at;
    at.column = (i32)split(number, p.tiles_w) * TILE_W - (i32)p.shift_w;
    at.begin = (i32)split(number, p.segments) * (i32)p.segment_rows;
    at.depth = (i32)split(number, p.depths);
    at.n = number;
    at.end = at.begin + (i32)p.segment_rows < (i32)p.height_out ? at.begin + (i32)p.segment_rows : (i32)p.height_out;
    at.top = SPREAD_H == 1 ? at.begin : at.begin - wrap(at.begin - (i32)p.pre_h, SPREAD_H);
    return at;
}

DEVICE i32 count_bands(const patch &at) {
    constexpr int ROWS = PERIOD * BAND_PERIODS;
    return ((at.end - 1 - at.top) * STEP_H + SPAN_H + ROWS - 1) / ROWS;
}
DEVICE i32 first_input_row(const arguments &p, const patch &at) { return (at.top * STEP_H - (i32)p.pre_h) / SPREAD_H; }
DEVICE i32 first_input_column(const arguments &p, const patch &at) {
    return (at.column * STEP_W - (i32)p.pre_w) / SPREAD_W;
}

/* Returns the plane of the image under a tap of an output at this depth, or -1. */
DEVICE i32 input_plane(const arguments &p, i32 depth, int tap) {
    if constexpr (!HAS_DEPTH)
        return 0;
    const i32 at = depth * (i32)p.step_d + tap * (i32)p.dilation_d - (i32)p.pre_d;
    return at >= 0 && at % (i32)p.spread_d == 0 && at / (i32)p.spread_d < (i32)p.depth_in ? at / (i32)p.spread_d : -1;
}

/* ---- A band: rows of an image in shared memory, all channels of the block ---- */

template <class T> struct image {
    const T *first; /* address of this image at the block's first channel */
    i64 stride_d, stride_h, stride_w, stride_c;
    i32 height, width, channels; /* extents that may be read */
};

/* Returns image n of the input, starting at a channel. */
DEVICE image<image_t> input_image(const arguments &p, i64 n, i32 channel) {
    return {p.image + (n * p.image_n + channel * p.image_c),
            p.image_d,
            p.image_h,
            p.image_w,
            p.image_c,
            (i32)p.height_in,
            (i32)p.width_in,
            (i32)p.channels - channel};
}

/* PAD: elements between planes, so that adjacent planes use different banks. */
template <class T, int RUN, int PLANES, int ROWS, int COLUMNS, int PAD = 0> struct band {
    static constexpr int CHANNEL_PITCH = band_channel_pitch(COLUMNS, CHANNELS_LAST, sizeof(T));
    static constexpr int COLUMN_PITCH = CHANNELS_LAST ? CHANNELS : 1;
    static constexpr int ROW_PITCH = band_row_pitch(COLUMNS, CHANNELS, CHANNELS_LAST, sizeof(T));
    alignas(16) T at[band_elements(PLANES, ROWS, ROW_PITCH, PAD)];

    static DEVICE int offset(int plane, int row) { return (plane * ROWS + row) * ROW_PITCH + plane * PAD; }
    DEVICE const T *row(int plane, int row) const { return at + offset(plane, row); }

    /* Loads rows row .. row + ROWS - 1, starting at `column`; `plane_of` returns the plane of the image, or -1.
       Elements outside are zeros. A warp loads a line at a time, which is contiguous in memory: a row of pixels, or of
       one channel. */
    template <class F> DEVICE void load(const image<T> &x, i32 row, i32 column, F plane_of) {
        constexpr int GROUPS = CHANNELS_LAST ? CHANNELS / RUN : 1, LINES_PER_ROW = CHANNELS_LAST ? 1 : CHANNELS;
        for (int line = threadIdx.x / 32; line < PLANES * ROWS * LINES_PER_ROW; line += THREADS / 32) {
            const int upper = line / LINES_PER_ROW;
            const i32 plane = plane_of(upper / ROWS), i = row + upper % ROWS;
            const bool is_line = plane >= 0 && (u32)i < (u32)x.height;
            const T *from = x.first + (is_line ? plane * x.stride_d + i * x.stride_h + column * x.stride_w : 0);
            T *to = at + offset(upper / ROWS, upper % ROWS);
#pragma unroll 2
            for (int e = threadIdx.x % 32; e < COLUMNS * GROUPS; e += 32) {
                const int across = e / GROUPS, channel = CHANNELS_LAST ? e % GROUPS * RUN : line % LINES_PER_ROW;
                const bool inside = is_line && (u32)(column + across) < (u32)x.width && channel < x.channels;
                copy_run(to + across * COLUMN_PITCH + channel * CHANNEL_PITCH,
                         from + (across * x.stride_w + channel * x.stride_c), inside);
            }
        }
    }

    static DEVICE void copy_run(T *to, const T *from, bool inside) {
        if constexpr (RUN * sizeof(T) >= 4) {
            copy_async<RUN * sizeof(T)>(to, from, inside);
        } else {
            run<T, RUN> r = {};
            if (inside)
                r = load_run<T, RUN>(from);
            store_run<T, RUN>(to, r);
        }
    }
};

/* Reads COUNT adjacent elements from the start of this thread's strip, as floats; strips have a distance of
   FIRST_STEP columns. */
template <int COUNT, int FIRST_STEP, class B>
DEVICE void read_strip(float (&x)[COUNT], const B &band, int plane, int row) {
    const auto *from =
        band.row(plane, row) + own_strip() * FIRST_STEP * B::COLUMN_PITCH + own_channel() * B::CHANNEL_PITCH;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        x[i] = to_float(from[i * B::COLUMN_PITCH]);
}
