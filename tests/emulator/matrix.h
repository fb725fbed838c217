/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor core instructions of a warp or a warpgroup, computed on the CPU: products, and loads and stores of 8 x 8
   blocks. A register is an array of 32 words, one per lane; each word holds two 16-bit elements, the bits of an f32, or
   an s32. Products are exact and are accumulated as floats (integers: exactly, modulo 2^32; FP8 by wgmma: truncated to
   13 bits below the largest one). It must not depend on instruction text, on threads or on when a product is waited
   for. */
#ifndef EMULATOR_MATRIX_H
#define EMULATOR_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum matrix_type { MATRIX_F16, MATRIX_BF16, MATRIX_TF32, MATRIX_E4M3, MATRIX_E5M2, MATRIX_S8, MATRIX_U8 };

/* mma.sync.aligned.m16n8kK.row.col: d = a b + c, where k elements of a row are 16 or 32 bytes. Registers that the shape
   does not have (16 bytes: the upper two of a, the upper one of b) are ignored. d may alias any operand. d and c are
   s32 if the operands are integers, f32 otherwise. */
void matrix_mma(int k, enum matrix_type a_type, enum matrix_type b_type, uint32_t *const d[4],
                const uint32_t *const a[4], const uint32_t *const b[2], const uint32_t *const c[4]);

/* wgmma.mma_async.m64nNkK. */
struct matrix_product {
    int n, k;
    enum matrix_type a_type, b_type;
    bool accumulates; /* scale-d; if false, the previous content of d is ignored */
    bool negates_a, negates_b;
    bool transposes_a, transposes_b; /* imm-trans, only for 16-bit types */
    bool a_in_registers;
    uint64_t a_descriptor, b_descriptor;
    const uint32_t *a[4][4]; /* registers of each of the four warps, if a is in registers */
    uint32_t *d[4][128];     /* n / 2 accumulators of each warp */
};

/* Reads the operands and accumulates the product. `shared` is the host pointer to shared address 0, from which swizzles
   are computed. Returns NULL, or an error message, in which case nothing was written. */
const char *matrix_multiply(const struct matrix_product *product, const unsigned char *shared, size_t shared_bytes);

/* Called with the shared address of each 16-byte chunk that a product reads. */
typedef void matrix_reader(void *context, uint32_t address);

/* A digest of all bytes of shared memory that the product reads; bytes beyond the end of shared memory are ignored.
   `reads` may be NULL. */
uint64_t matrix_digest(const struct matrix_product *product, const unsigned char *shared, size_t shared_bytes,
                       matrix_reader *reads, void *context);

/* ldmatrix and stmatrix .m8n8.x{1,2,4}{.trans}.b16: rows[l] is the address of 16 bytes that lane l supplied; lanes from
   8 * count on are ignored. */
void matrix_load(int count, bool transposes, uint32_t *const d[4], const unsigned char *const rows[32]);
void matrix_store(int count, bool transposes, unsigned char *const rows[32], const uint32_t *const s[4]);

#endif
