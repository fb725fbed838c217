/* SPDX-License-Identifier: Apache-2.0 */
/* Products gather both operands as floats, which represent every operand type exactly, multiply them in plain loops and
   add the sums to the registers. Memory is read in chunks of 16 bytes, the granularity of swizzles. It must not depend
   on instruction text, on threads or on when a product is waited for. */
#include "matrix.h"

#include "numbers.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 32,
    WARPS = 4,
    WARP_ROWS = 16,
    ROWS = WARPS * WARP_ROWS,
    N_MAX = 256,
    CHUNK = 16,   /* bytes */
    K_BYTES = 32, /* of one operand row, at most */
    K_MAX = 32,
};

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
#else
#define AVX2
#endif

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

static int bytes_of(enum matrix_type type) {
    return type == MATRIX_TF32 ? 4 : type == MATRIX_F16 || type == MATRIX_BF16 ? 2 : 1;
}

static bool is_integer(enum matrix_type type) { return type == MATRIX_S8 || type == MATRIX_U8; }

static bool is_fp8(enum matrix_type type) { return type == MATRIX_E4M3 || type == MATRIX_E5M2; }

static bool go_together(enum matrix_type a, enum matrix_type b) {
    return a == b || (is_integer(a) && is_integer(b)) || (is_fp8(a) && is_fp8(b));
}

/* Converts the elements of a chunk to floats with stride `step`. The trip counts are constants, so that the loops are
   vectorized. */
static void widen(enum matrix_type type, const unsigned char *chunk, float *to, int step) {
    uint16_t halves[CHUNK / 2];
    uint32_t words[CHUNK / 4];
    float values[CHUNK];
    switch (type) {
    case MATRIX_F16:
        memcpy(halves, chunk, sizeof halves);
        for (int i = 0; i < CHUNK / 2; i++)
            values[i] = from_f16(halves[i]);
        break;
    case MATRIX_BF16:
        memcpy(halves, chunk, sizeof halves);
        for (int i = 0; i < CHUNK / 2; i++)
            values[i] = from_bf16(halves[i]);
        break;
    case MATRIX_TF32: /* the hardware ignores the low 13 bits */
        memcpy(words, chunk, sizeof words);
        for (int i = 0; i < CHUNK / 4; i++)
            values[i] = float_of_bits(words[i] & ~0x1fffu);
        break;
    case MATRIX_E4M3:
        for (int i = 0; i < CHUNK; i++)
            values[i] = from_e4m3(chunk[i]);
        break;
    case MATRIX_E5M2:
        for (int i = 0; i < CHUNK; i++)
            values[i] = from_e5m2(chunk[i]);
        break;
    case MATRIX_S8:
        for (int i = 0; i < CHUNK; i++)
            values[i] = (signed char)chunk[i];
        break;
    case MATRIX_U8:
        for (int i = 0; i < CHUNK; i++)
            values[i] = chunk[i];
        break;
    }
    for (int i = 0; i < CHUNK / bytes_of(type); i++)
        to[i * step] = values[i];
}

/* ---- Registers --------------------------------------------------------------------------------------------------- */

/* Converts row `row` of 8, one chunk per 4 lanes: lane 4 row + t holds bytes 4 t .. 4 t + 3. */
static void widen_lanes(enum matrix_type type, const uint32_t *reg, int row, float *to, int step) {
    unsigned char chunk[CHUNK];
    memcpy(chunk, reg + 4 * row, sizeof chunk);
    widen(type, chunk, to, step);
}

/* Gathers A of one warp, [16][K_MAX]: register q holds the rows 8 (q % 2) .. + 7 of chunk q / 2. */
static void gather_a(enum matrix_type type, int chunks, const uint32_t *const reg[4], float *a) {
    int count = CHUNK / bytes_of(type);
    for (int q = 0; q < 2 * chunks; q++)
        for (int row = 0; row < 8; row++)
            widen_lanes(type, reg[q], row, a + (q % 2 * 8 + row) * K_MAX + q / 2 * count, 1);
}

/* Adds sums[WARP_ROWS][n] to the accumulators of one warp: register 4 j + 2 h + e of lane 4 r + t is row r + 8 h,
   column 8 j + 2 t + e. */
static void add_sums(bool is_whole, int n, const float *sums, uint32_t *const *d, const uint32_t *const *c) {
    for (int i = 0; i < n / 2; i++) {
        const float *corner = sums + i / 2 % 2 * 8 * n + i / 4 * 8 + i % 2;
        uint32_t words[LANES] = {0};
        float floats[LANES], values[LANES];
        for (int lane = 0; lane < LANES; lane++)
            values[lane] = corner[lane / 4 * n + lane % 4 * 2];
        if (is_whole) {
            if (c)
                memcpy(words, c[i], sizeof words);
            for (int lane = 0; lane < LANES; lane++)
                words[lane] += (uint32_t)(int32_t)values[lane];
            memcpy(d[i], words, sizeof words);
        } else if (c) {
            memcpy(floats, c[i], sizeof floats);
            for (int lane = 0; lane < LANES; lane++)
                floats[lane] += values[lane];
            memcpy(d[i], floats, sizeof floats);
        } else {
            memcpy(d[i], values, sizeof values);
        }
    }
}

/* ---- The product ------------------------------------------------------------------------------------------------- */

/* sums[i][j] = a[i][0 .. k-1] b[0 .. k-1][j], where k is a multiple of 4. The sum of 32 products of bytes is exact in a
   float. */
INLINE void multiply_rows(int rows, int n, int k, const float *restrict a, const float *restrict b,
                          float *restrict sums) {
    for (int i = 0; i < rows; i++) {
        float *row = sums + i * n;
        memset(row, 0, (size_t)n * sizeof *row);
        for (int step = 0; step < k; step += 4) {
            const float *f = a + i * K_MAX + step, *g = b + step * n;
            for (int block = 0; block < n; block += 8) /* n is a multiple of 8, so a block is one or two vectors */
                for (int j = block; j < block + 8; j++)
                    row[j] += f[0] * g[j] + f[1] * g[n + j] + f[2] * g[2 * n + j] + f[3] * g[3 * n + j];
        }
    }
}

#if defined(__x86_64__)
AVX2 static void multiply_avx2(int rows, int n, int k, const float *a, const float *b, float *sums) {
    multiply_rows(rows, n, k, a, b, sums);
}
#endif

static void multiply(int rows, int n, int k, const float *a, const float *b, float *sums) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        multiply_avx2(rows, n, k, a, b, sums);
        return;
    }
#endif
    multiply_rows(rows, n, k, a, b, sums);
}

void matrix_mma(int k, enum matrix_type a_type, enum matrix_type b_type, uint32_t *const d[4],
                const uint32_t *const a[4], const uint32_t *const b[2], const uint32_t *const c[4]) {
    enum { N = 8 };
    float factors[WARP_ROWS * K_MAX], columns[K_MAX * N], sums[WARP_ROWS * N];
    uint32_t before[4][LANES]; /* d may contain the registers of c in another order */
    const uint32_t *const addends[4] = {before[0], before[1], before[2], before[3]};
    int count = CHUNK / bytes_of(b_type), chunks = k / count;
    gather_a(a_type, chunks, a, factors);
    for (int q = 0; q < chunks; q++)
        for (int column = 0; column < N; column++)
            widen_lanes(b_type, b[q], column, columns + q * count * N + column, N);
    multiply(WARP_ROWS, N, k, factors, columns, sums);
    for (int i = 0; i < 4; i++)
        memcpy(before[i], c[i], sizeof before[i]);
    add_sums(is_integer(a_type), N, sums, d, addends);
}

/* ---- Operands in shared memory ----------------------------------------------------------------------------------- */

/* `rows` is m or n. If not transposed, a chunk is 16 bytes of a row along k; if transposed, 8 rows at one k. Chunk (i,
   j) is the j-th of line i. */
struct operand {
    uint32_t start, leading, stride,
        span; /* span: bytes within which the swizzle permutes chunks; 16 means no swizzle */
    bool transposes;
    int rows, lines, chunks;
};

static struct operand operand_of(uint64_t descriptor, int rows, bool transposes) {
    static const uint32_t SPANS[] = {16, 128, 64, 32};
    return (struct operand){
        .start = (uint32_t)(descriptor & 0x3fff) << 4,
        .leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
        .stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4,
        .span = SPANS[descriptor >> 62],
        .transposes = transposes,
        .rows = rows,
        .lines = transposes ? 16 : rows,
        .chunks = transposes ? rows / 8 : K_BYTES / CHUNK,
    };
}

static uint32_t chunk_address(const struct operand *o, int line, int chunk) {
    uint32_t group = (uint32_t)line / 8, row = (uint32_t)line % 8 * o->span, at = (uint32_t)chunk,
             spans = o->span / CHUNK;
    uint32_t address = o->start + row;
    if (o->span == CHUNK && o->transposes)
        address += group * o->leading + at * o->stride;
    else if (o->span == CHUNK || o->transposes)
        address += group * o->stride + at / spans * o->leading + at % spans * CHUNK;
    else
        address += group * o->stride + at * CHUNK;
    /* 128 bytes: address bits 4-6 ^= 7-9; 64: 4-5 ^= 7-8; 32: 4 ^= 7. */
    return address ^ (address >> 7 & (spans - 1)) << 4;
}

static const char *find_fault(const struct operand *o, uint64_t descriptor, size_t shared_bytes) {
    const uint64_t USED = 0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62;
    if (descriptor >> 49 & 7)
        return "the base offset of a wgmma descriptor is not 0";
    if (descriptor & ~USED)
        return "bits of a wgmma descriptor that mean nothing are set";
    uint32_t width =
        o->transposes ? (uint32_t)o->rows * 2 : K_BYTES; /* bytes per line; slabs repeat after `span` bytes */
    if (o->span > CHUNK && o->start % o->span + (width < o->span ? width : o->span) > o->span)
        return "a wgmma operand crosses the end of its swizzle's span";
    for (int i = 0; i < o->lines; i++)
        for (int j = 0; j < o->chunks; j++)
            if ((size_t)chunk_address(o, i, j) + CHUNK > shared_bytes)
                return "a wgmma operand goes beyond the block's shared memory";
    return NULL;
}

/* Copies element (row, k) to to[row * row_step + k * k_step]. */
static void gather(const struct operand *o, enum matrix_type type, const unsigned char *shared, float *to, int row_step,
                   int k_step) {
    int count = CHUNK / bytes_of(type), line_step = o->transposes ? k_step : row_step;
    int step = o->transposes ? row_step : k_step;
    for (int i = 0; i < o->lines; i++)
        for (int j = 0; j < o->chunks; j++)
            widen(type, shared + chunk_address(o, i, j), to + i * line_step + j * count * step, step);
}

static const char *find_bad_shape(const struct matrix_product *p) {
    bool is_whole = is_integer(p->a_type);
    if (!go_together(p->a_type, p->b_type))
        return "wgmma has no product of these two types";
    if (p->k != K_BYTES / bytes_of(p->a_type))
        return "wgmma's k is not 32 bytes";
    if (p->n < 8 || p->n > N_MAX || p->n % 8)
        return "wgmma's n is not a multiple of 8 up to 256";
    if (is_whole && p->n > 24 && p->n % 16)
        return "wgmma's n is not a multiple of 16, as integers want it";
    if (is_whole && (p->negates_a || p->negates_b))
        return "wgmma cannot negate integers";
    if (bytes_of(p->a_type) != 2 && (p->transposes_a || p->transposes_b))
        return "wgmma transposes elements of 16 bits only";
    if (p->a_in_registers && p->transposes_a)
        return "wgmma cannot transpose registers";
    return NULL;
}

/* Accumulates like wgmma with FP8 operands: every product, and the previous accumulator, is truncated at 2^-13 of the
   power of two of the largest one. sums[n] holds the accumulators of one row. Underflow of that threshold is not
   handled. */
INLINE void truncate_row(int n, int k, const float *restrict a, const float *restrict b, float *restrict sums) {
    float largest[N_MAX], inverse[N_MAX];
    for (int j = 0; j < n; j++)
        largest[j] = fabsf(sums[j]);
    for (int i = 0; i < k; i++)
        for (int j = 0; j < n; j++) {
            float size = fabsf(a[i] * b[i * n + j]);
            largest[j] = size > largest[j] || isnan(size) ? size : largest[j];
        }
    for (int j = 0; j < n; j++) {
        float power = float_of_bits(bits_of_float(largest[j]) & 0x7f800000);
        inverse[j] = power >= 0x1p-100f && power < INFINITY ? 0x1p13f / power : 0; /* 0: nothing is truncated */
        sums[j] = inverse[j] > 0 ? truncf(sums[j] * inverse[j]) : sums[j];
    }
    for (int i = 0; i < k; i++)
        for (int j = 0; j < n; j++) {
            float term = a[i] * b[i * n + j];
            sums[j] += inverse[j] > 0 ? truncf(term * inverse[j]) : term;
        }
    for (int j = 0; j < n; j++)
        sums[j] = inverse[j] > 0 ? sums[j] / inverse[j] : sums[j];
}

#if defined(__x86_64__)
AVX2 static void truncate_row_avx2(int n, int k, const float *a, const float *b, float *sums) {
    truncate_row(n, k, a, b, sums);
}
#endif

static void add_truncated(const struct matrix_product *p, const float *a, const float *b) {
    float sums[N_MAX] = {0};
    for (int row = 0; row < ROWS; row++) {
        uint32_t *places[N_MAX];
        int in_warp = row % WARP_ROWS;
        for (int column = 0; column < p->n; column++) {
            uint32_t *reg = p->d[row / WARP_ROWS][column / 8 * 4 + in_warp / 8 * 2 + column % 2];
            places[column] = &reg[in_warp % 8 * 4 + column % 8 / 2];
            sums[column] = p->accumulates ? float_of_bits(*places[column]) : 0;
        }
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2"))
            truncate_row_avx2(p->n, p->k, a + row * K_MAX, b, sums);
        else
#endif
            truncate_row(p->n, p->k, a + row * K_MAX, b, sums);
        for (int column = 0; column < p->n; column++)
            *places[column] = bits_of_float(sums[column]);
    }
}

const char *matrix_multiply(const struct matrix_product *p, const unsigned char *shared, size_t shared_bytes) {
    float a[ROWS * K_MAX], b[K_MAX * N_MAX], sums[ROWS * N_MAX];
    struct operand a_operand = operand_of(p->a_descriptor, ROWS, p->transposes_a);
    struct operand b_operand = operand_of(p->b_descriptor, p->n, p->transposes_b);
    const char *fault = find_bad_shape(p);
    if (!fault && !p->a_in_registers)
        fault = find_fault(&a_operand, p->a_descriptor, shared_bytes);
    if (!fault)
        fault = find_fault(&b_operand, p->b_descriptor, shared_bytes);
    if (fault)
        return fault;

    if (p->a_in_registers)
        for (int warp = 0; warp < WARPS; warp++)
            gather_a(p->a_type, K_BYTES / CHUNK, p->a[warp], a + warp * WARP_ROWS * K_MAX);
    else
        gather(&a_operand, p->a_type, shared, a, K_MAX, 1);
    if (p->negates_a != p->negates_b)
        for (int i = 0; i < ROWS * K_MAX; i++)
            a[i] = -a[i];
    gather(&b_operand, p->b_type, shared, b, 1, p->n);
    if (p->a_type == MATRIX_E4M3 || p->a_type == MATRIX_E5M2) {
        add_truncated(p, a, b);
        return NULL;
    }
    multiply(ROWS, p->n, p->k, a, b, sums);
    for (int warp = 0; warp < WARPS; warp++) {
        uint32_t *const *d = p->d[warp];
        add_sums(is_integer(p->a_type), p->n, sums + warp * WARP_ROWS * p->n, d,
                 p->accumulates ? (const uint32_t *const *)d : NULL);
    }
    return NULL;
}

/* ---- Digest ------------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t digest, uint64_t word) {
    digest = (digest ^ word) * 0x9e3779b97f4a7c15ull;
    return digest ^ digest >> 32;
}

static uint64_t digest_operand(const struct operand *o, const unsigned char *shared, size_t shared_bytes,
                               uint64_t digest, matrix_reader *reads, void *context) {
    for (int i = 0; i < o->lines; i++)
        for (int j = 0; j < o->chunks; j++) {
            uint64_t words[2];
            uint32_t address = chunk_address(o, i, j);
            if ((size_t)address + CHUNK > shared_bytes)
                continue;
            if (reads)
                reads(context, address);
            memcpy(words, shared + address, sizeof words);
            digest = mix(mix(digest, words[0]), words[1]);
        }
    return digest;
}

uint64_t matrix_digest(const struct matrix_product *p, const unsigned char *shared, size_t shared_bytes,
                       matrix_reader *reads, void *context) {
    struct operand a = operand_of(p->a_descriptor, ROWS, p->transposes_a);
    struct operand b = operand_of(p->b_descriptor, p->n, p->transposes_b);
    uint64_t digest = 0;
    if (!p->a_in_registers)
        digest = digest_operand(&a, shared, shared_bytes, digest, reads, context);
    return digest_operand(&b, shared, shared_bytes, digest, reads, context);
}

/* ---- Blocks of 8 x 8 halves -------------------------------------------------------------------------------------- */

/* The element of its line that lane `lane` holds in the lower (0) or upper (1) part of its register. */
static int place(int lane, int part, bool transposes) {
    int line = lane / 4, at = lane % 4 * 2 + part;
    return transposes ? at * 8 + line : line * 8 + at;
}

void matrix_load(int count, bool transposes, uint32_t *const d[4], const unsigned char *const rows[32]) {
    for (int q = 0; q < count; q++) {
        uint16_t block[64];
        for (int row = 0; row < 8; row++)
            memcpy(block + row * 8, rows[q * 8 + row], CHUNK);
        for (int lane = 0; lane < LANES; lane++)
            d[q][lane] = block[place(lane, 0, transposes)] | (uint32_t)block[place(lane, 1, transposes)] << 16;
    }
}

void matrix_store(int count, bool transposes, unsigned char *const rows[32], const uint32_t *const s[4]) {
    for (int q = 0; q < count; q++) {
        uint16_t block[64];
        for (int lane = 0; lane < LANES; lane++)
            for (int part = 0; part < 2; part++)
                block[place(lane, part, transposes)] = (uint16_t)(s[q][lane] >> 16 * part);
        for (int row = 0; row < 8; row++)
            memcpy(rows[q * 8 + row], block + row * 8, CHUNK);
    }
}
