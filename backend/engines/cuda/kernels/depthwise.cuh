/* depthwise: y[n,p,q,c] = finish(sum over taps of x[n, p, q + taps, c] * w[c, tap])        16-bit, channels last, float sums; sm_75 and up
   Formula   every channel has a filter of its own; a data gradient is the same walk over dy with the filter turned round (IS_TURNED)
   Tile      a block makes 2 * ROWS rows x 4 strips of STRIP pixels x 64 channels: a warp has ROWS rows of one strip, a lane 2 channels
   Staging   the patch of the image under the tile, zeros where it is outside, and the filters in float lie in shared memory
   Reuse     a lane loads a line of its strip once for all taps and rows that meet there: of R * S * STRIP * ROWS products
             per channel, (STRIP - 1) * STRIDE + S loads per line
   Limits    channels in eights; filters up to 7 x 7: the taps of a line are unrolled
   Params    TAPS_R TAPS_S STRIDE ROWS STRIP IS_TURNED RUN index sum_t stored, and arguments x w images height width lines columns
             channels pad_h pad_w w_c w_r w_s tiles_p tiles_q tiles_c */

constexpr int CHANNELS = 64, WARPS = 8, THREADS = WARPS * 32, STRIPS = 4;
constexpr int TILE_P = WARPS / STRIPS * ROWS, TILE_Q = STRIPS * STRIP;
constexpr int PATCH_H = (TILE_P - 1) * STRIDE + TAPS_R, PATCH_W = (TILE_Q - 1) * STRIDE + TAPS_S;
constexpr int SPAN = (STRIP - 1) * STRIDE + TAPS_S, LINES = (ROWS - 1) * STRIDE + TAPS_R;
constexpr int EIGHTS = CHANNELS / 8; /* a pixel of the patch is eight accesses of 16 bytes */
static_assert(RUN == 2 && sizeof(stored) == 2, "a lane has two channels");

struct memory {
    alignas(16) stored patch[PATCH_H * PATCH_W * CHANNELS];
    alignas(16) float filters[TAPS_R * TAPS_S * CHANNELS]; /* [tap][channel] */
};
extern __shared__ __align__(16) unsigned char s_memory[];

struct place { i32 image, line, column, channel; };

DEVICE place find_place(const arguments& p) {
    u32 rest = blockIdx.x;
    const i32 channel = (i32)split(rest, p.tiles_c) * CHANNELS, column = (i32)split(rest, p.tiles_q) * TILE_Q;
    const i32 line = (i32)split(rest, p.tiles_p) * TILE_P;
    return {(i32)rest, line, column, channel};
}

DEVICE void stage_patch(memory& s, const arguments& p, const place& at) {
    const i32 top = at.line * STRIDE - (i32)p.pad_h, left = at.column * STRIDE - (i32)p.pad_w;
    for (int t = threadIdx.x; t < PATCH_H * PATCH_W * EIGHTS; t += THREADS) {
        const int pixel = t / EIGHTS, eight = t % EIGHTS;
        const i32 h = top + pixel / PATCH_W, w = left + pixel % PATCH_W, c = at.channel + eight * 8;
        run<stored, 8> got = {};
        if ((u32)h < (u32)p.height && (u32)w < (u32)p.width && c < (i32)p.channels)
            got = load_run<stored, 8>(p.x + at.image * p.x_n + h * p.x_h + w * p.x_w + c);
        store_run<stored, 8>(&s.patch[pixel * CHANNELS + eight * 8], got);
    }
}

DEVICE void stage_filters(memory& s, const arguments& p, const place& at) {
    for (int t = threadIdx.x; t < TAPS_R * TAPS_S * CHANNELS; t += THREADS) {
        const int tap = t / CHANNELS, c = at.channel + t % CHANNELS;
        const int r = IS_TURNED ? TAPS_R - 1 - tap / TAPS_S : tap / TAPS_S, q = IS_TURNED ? TAPS_S - 1 - tap % TAPS_S : tap % TAPS_S;
        s.filters[t] = c < (i32)p.channels ? to_float(p.w[c * p.w_c + r * p.w_r + q * p.w_s]) : 0.0f;
    }
}

/* The sums of ROWS rows of a strip, two channels. */
DEVICE void sum_strip(float (&sum)[ROWS][STRIP][2], const memory& s, int line, int column, int lane) {
    #pragma unroll 1 /* lines one after the other: with all of them in sight the compiler keeps too much in registers */
    for (int h = 0; h < LINES; ++h) {
        float x[SPAN][2];
        #pragma unroll
        for (int i = 0; i < SPAN; ++i) {
            const run<stored, 2> two = load_run<stored, 2>(&s.patch[((line * STRIDE + h) * PATCH_W + column * STRIDE + i) * CHANNELS + lane * 2]);
            x[i][0] = to_float(two.at[0]), x[i][1] = to_float(two.at[1]);
        }
        #pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            const int r = h - row * STRIDE;
            if (r < 0 || r >= TAPS_R) continue;
            #pragma unroll
            for (int tap = 0; tap < TAPS_S; ++tap) {
                const run<float, 2> w = load_run<float, 2>(&s.filters[(r * TAPS_S + tap) * CHANNELS + lane * 2]);
                #pragma unroll
                for (int i = 0; i < STRIP; ++i) {
                    sum[row][i][0] = fmaf(x[i * STRIDE + tap][0], w.at[0], sum[row][i][0]);
                    sum[row][i][1] = fmaf(x[i * STRIDE + tap][1], w.at[1], sum[row][i][1]);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) depthwise(const __grid_constant__ arguments p) {
    memory& s = *(memory*)s_memory;
    const place at = find_place(p);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = warp / STRIPS * ROWS, column = warp % STRIPS * STRIP;
    stage_patch(s, p, at);
    stage_filters(s, p, at);
    __syncthreads();
    float sum[ROWS][STRIP][2] = {};
    sum_strip(sum, s, line, column, lane);
    #pragma unroll
    for (int row = 0; row < ROWS; ++row)
        #pragma unroll
        for (int i = 0; i < STRIP; ++i) {
            const i32 y = at.line + line + row, q = at.column + column + i, c = at.channel + lane * 2;
            if (y < (i32)p.lines && q < (i32)p.columns && c < (i32)p.channels)
                finish(p, (index)(((at.image * (i32)p.lines + y) * (i32)p.columns + q) * (i32)p.channels + c), 0, 0, run<sum_t, 2>{{sum[row][i][0], sum[row][i][1]}});
        }
}
