/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor core instructions of a warp or a warpgroup, done on the processor: products and the loads and stores of
   8 x 8 blocks. A register is an array of 32 words, one a lane: two 16-bit elements, an f32's bits or an s32 each.
   Products are exact and are summed as floats (integers: exactly, modulo 2^32; FP8 by wgmma: truncated, 13 bits behind
   the largest one).
   It must not know instruction text, threads or when a product is waited for. */
#ifndef EMULATOR_MATRIX_H
#define EMULATOR_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum matrix_type { MATRIX_F16, MATRIX_BF16, MATRIX_TF32, MATRIX_E4M3, MATRIX_E5M2, MATRIX_S8, MATRIX_U8 };

/* mma.sync.aligned.m16n8kK.row.col: d = a b + c, where k elements of a row are 16 or 32 bytes. The registers that the
   shape does not have (16 bytes: the upper two of a, the upper one of b) are not looked at. d may be any of the others.
   d and c are s32 when the operands are integers, f32 otherwise. */
void matrix_mma(int k, enum matrix_type a_type, enum matrix_type b_type, uint32_t *const d[4],
                const uint32_t *const a[4], const uint32_t *const b[2], const uint32_t *const c[4]);

/* wgmma.mma_async.m64nNkK. */
struct matrix_product {
    int n, k;
    enum matrix_type a_type, b_type;
    bool accumulates; /* scale-d; otherwise what d holds does not count */
    bool negates_a, negates_b;
    bool transposes_a, transposes_b; /* imm-trans, 16-bit types only */
    bool a_in_registers;
    uint64_t a_descriptor, b_descriptor;
    const uint32_t *a[4][4]; /* of each of the four warps, when in registers */
    uint32_t *d[4][128];     /* n / 2 accumulators of each warp */
};

/* Reads the operands now and adds. `shared` is the host's pointer to shared address 0, which swizzles count from.
   NULL, or what is wrong in words; then nothing was written. */
const char *matrix_multiply(const struct matrix_product *product, const unsigned char *shared, size_t shared_bytes);

/* Called with the shared address of each 16 bytes that a product reads. */
typedef void matrix_reader(void *context, uint32_t address);

/* A digest of all bytes that the product reads in shared memory; those beyond its end do not count. reads: or NULL. */
uint64_t matrix_digest(const struct matrix_product *product, const unsigned char *shared, size_t shared_bytes,
                       matrix_reader *reads, void *context);

/* ldmatrix and stmatrix .m8n8.x{1,2,4}{.trans}.b16: rows[l] is the address that lane l gave, of 16 bytes; lanes from
   8 * count on are not looked at. */
void matrix_load(int count, bool transposes, uint32_t *const d[4], const unsigned char *const rows[32]);
void matrix_store(int count, bool transposes, unsigned char *const rows[32], const uint32_t *const s[4]);

#endif
