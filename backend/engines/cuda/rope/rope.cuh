/* rope: rotates pairs of elements of heads by the angles of their token
   Types     any float types, in float or double
   Tile      a thread computes the sines and cosines of one pair of one token and applies them to p.heads_each heads;
             adjacent threads have adjacent pairs. Elements before the rotated ones are only scaled, one per thread
   Params    THREADS IS_INTERLEAVED IS_BACKWARD HAS_POSITIONS HAS_OFFSETS sum_t position */
#include "core/gather.cuh"

DEVICE void sincos_of(float x, float &s, float &c) { sincosf(x, &s, &c); }
DEVICE void sincos_of(double x, double &s, double &c) { sincos(x, &s, &c); }

/* The row of freqs of a token. Positions out of range count as the nearest one. */
DEVICE i64 row_of(const arguments &p, i64 entry, i64 token) {
    i64 row = token;
    if constexpr (HAS_POSITIONS) {
        row = to_integer(p.positions[entry * p.positions_b + (HAS_OFFSETS ? 0 : token * p.positions_s)]);
        row = HAS_OFFSETS ? row + token : row;
    }
    return row < 0 ? 0 : row < p.rows ? row : p.rows - 1;
}

extern "C" __global__ void __launch_bounds__(THREADS) rope(const __grid_constant__ arguments p) {
    const sum_t scale = (sum_t)__longlong_as_double(p.scale);
    const i64 head = (i64)blockIdx.y * p.heads_each, heads_end = head + p.heads_each;
    const i64 end = heads_end < p.heads ? heads_end : p.heads;
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.total; at += (i64)gridDim.x * THREADS) {
        position rest = (position)at;
        const i64 unit = (i64)split(rest, p.units), token = (i64)split(rest, p.tokens), entry = (i64)rest;
        const i64 pair = unit - p.kept;
        const i64 a = pair < 0 ? unit : p.kept + (IS_INTERLEAVED ? 2 * pair : pair);
        const i64 b = a + (IS_INTERLEAVED ? 1 : p.pairs);
        const x_t *x = p.x + entry * p.x_b + token * p.x_s;
        y_t *y = p.y + entry * p.y_b + token * p.y_s;
        sum_t sin_a = 0, cos_a = 1, sin_b = 0, cos_b = 1;
        if (pair >= 0) {
            const freqs_t *freqs = p.freqs + row_of(p, entry, token) * p.freqs_p;
            sincos_of(as<sum_t>::of(freqs[(a - p.kept) * p.freqs_d]), sin_a, cos_a);
            sincos_of(as<sum_t>::of(freqs[(b - p.kept) * p.freqs_d]), sin_b, cos_b);
        }
        const sum_t across_a = IS_BACKWARD ? sin_b : -sin_a, across_b = IS_BACKWARD ? -sin_a : sin_b;
#pragma unroll 4
        for (i64 h = head; h < end; h++) {
            const sum_t at_a = as<sum_t>::of(x[h * p.x_h + a * p.x_d]);
            const sum_t at_b = pair < 0 ? (sum_t)0 : as<sum_t>::of(x[h * p.x_h + b * p.x_d]);
            y[h * p.y_h + a * p.y_d] = from<y_t>::number(scale * (at_a * cos_a + (pair < 0 ? 0 : at_b * across_a)));
            if (pair >= 0)
                y[h * p.y_h + b * p.y_d] = from<y_t>::number(scale * (at_b * cos_b + at_a * across_b));
        }
    }
}
