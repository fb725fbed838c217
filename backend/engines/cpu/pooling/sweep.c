/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/pooling/sweep.h"

#include "base/vectors.h"
#include "engines/cpu/core/vector.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <stddef.h>
#include <string.h>

enum { LINE = 64 }; /* bytes of a cache line */

/* Fields of a sweep that loops keep in registers: results may be any memory, which for all the compiler knows could be
   the sweep itself. */
struct frame {
    int64_t channels, positions, row_step, pick_step, result_step, where_step;
    float *results, factor;
    int32_t *where;
    int count;
    bool continues;
};

static inline struct frame frame_of(const struct sweep *s) {
    return (struct frame){s->channels, s->positions, s->row_step, s->pick_step, s->result_step, s->where_step,
                          s->results,  s->factor,    s->where,    s->count,     s->continues};
}

/* Bytes are widened to 16 bits first: GCC converts element by element from 8 to 32 bits. */
typedef int8_t bytes_4 __attribute__((vector_size(4), may_alias, aligned(1)));
typedef int8_t bytes_8 __attribute__((vector_size(8), may_alias, aligned(1)));
typedef int16_t shorts_4 __attribute__((vector_size(8)));
typedef int16_t shorts_8 __attribute__((vector_size(16)));
typedef uint16_t halves_4 __attribute__((vector_size(8), may_alias, aligned(1)));
typedef uint16_t halves_8 __attribute__((vector_size(16), may_alias, aligned(1)));

#if defined(__x86_64__)
#define NAME(name) avx512_##name
#define TARGET __attribute__((target("avx512f")))
#define LANES 16
#define WIDEN_BYTES(at) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(at)))
#define WIDEN_HALVES(at) _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(at)))
#include "engines/cpu/pooling/sweep_define.h"
#define NAME(name) avx2_##name
#define TARGET __attribute__((target("avx2")))
#define LANES 8
#define WIDEN_BYTES(at) CONVERT(CONVERT(*(const bytes_8 *)(at), shorts_8), avx2_ints)
#define WIDEN_HALVES(at) CONVERT(*(const halves_8 *)(at), avx2_words)
#include "engines/cpu/pooling/sweep_define.h"
#endif
/* 16-byte vectors: SSE2, NEON, or whatever the compiler lowers them to */
#define NAME(name) plain_##name
#define TARGET
#define LANES 4
#define WIDEN_BYTES(at) CONVERT(CONVERT(*(const bytes_4 *)(at), shorts_4), plain_ints)
#define WIDEN_HALVES(at) CONVERT(*(const halves_4 *)(at), plain_words)
#include "engines/cpu/pooling/sweep_define.h"

static const struct sweep_kernels all[] = {
#if defined(__x86_64__)
    {"avx512", avx512_maximum, avx512_sum},
    {"avx2", avx2_maximum, avx2_sum},
#endif
    {"plain", plain_maximum, plain_sum},
};

/* Writes whole lines past the caches; the parts before the first line and after the last one are stored normally. */
void sweep_flush(float *to, const float *from, int64_t count) {
    int64_t i = 0;
#if defined(__x86_64__)
    for (; i < count && (uintptr_t)(to + i) % LINE != 0; i++)
        to[i] = from[i];
    for (; i + LINE / 4 <= count; i += LINE / 4)
        for (int k = 0; k < LINE / 4; k += 4)
            _mm_stream_ps(to + i + k, _mm_loadu_ps(from + i + k));
    _mm_sfence();
#endif
    memcpy(to + i, from + i, (size_t)(count - i) * sizeof *to);
}

const struct sweep_kernels *sweep_kernels(int rank) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (cpu_runs(all[i].name) && rank-- == 0)
            return &all[i];
    return NULL;
}
