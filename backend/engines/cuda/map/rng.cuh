/* rng: random numbers that depend only on seed, offset and position                                  any chip, any type
   Formula   base/philox.h: rows of the last dimension are split into blocks of four adjacent elements, which share one
             Philox block
   Tile      a thread generates one block of four
   Limits    IS_WHOLE: rows are whole blocks, contiguous in memory and aligned, and are written in one store
   Params    THREADS DISTRIBUTION (0 Bernoulli, 1 uniform, 2 normal) IS_WHOLE y_t math_t position, and row_of(),
             seed_of(), offset_of() */

/* Box-Muller: r cos(t) and r sin(t) from two words. Near 1, the logarithm is computed from the distance to 1, which
   float represents. */
DEVICE void make_pair(u32 a, u32 b, float &x, float &y) {
    const float log_u = a >> 31 ? log1pf((float)(0xffffffffu - a) * -2.3283064365386963e-10f)
                                : logf(((float)a + 1.0f) * 2.3283064365386963e-10f);
    const float radius = sqrtf(-2.0f * log_u);
    sincospif((float)(b >> 8) * 1.1920928955078125e-7f, &y, &x); /* 2 (b >> 8) / 2^24 half turns */
    x *= radius;
    y *= radius;
}
DEVICE void make_pair(u32 a, u32 b, double &x, double &y) {
    const double radius = ::sqrt(-2 * ::log((a + 1.0) * 2.3283064365386963e-10)),
                 angle = 6.283185307179586477 * philox_unit(b);
    x = radius * ::cos(angle);
    y = radius * ::sin(angle);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) rng(const __grid_constant__ arguments p) {
    const u64 seed = seed_of(p), offset = offset_of(p);
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.blocks; at += (i64)gridDim.x * THREADS) {
        const philox words = philox_words(seed, offset, (u64)at);
        position rest = (position)at;
        const i64 column = (i64)split(rest, p.blocks_per_row) * 4;
        run<y_t, 4> out;
        if constexpr (DISTRIBUTION == 2) {
            math_t drawn[4];
            make_pair(words.word[0], words.word[1], drawn[0], drawn[1]);
            make_pair(words.word[2], words.word[3], drawn[2], drawn[3]);
#pragma unroll
            for (int e = 0; e < 4; e++)
                out.at[e] = from<y_t>::number((math_t)__longlong_as_double(p.first) +
                                              (math_t)__longlong_as_double(p.second) * drawn[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const u32 word = words.word[e];
                if constexpr (DISTRIBUTION == 0)
                    out.at[e] = from<y_t>::number((math_t)(word >> 8 < (u32)p.first));
                else
                    out.at[e] = from<y_t>::number(__longlong_as_double(p.first) +
                                                  __longlong_as_double(p.second) * philox_unit(word));
            }
        }
        y_t *y = row_of(p, rest);
        if constexpr (IS_WHOLE) {
            store_run<y_t, 4>(y + column, out);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (column + e < p.columns)
                    y[(column + e) * p.column_stride] = out.at[e];
        }
    }
}
