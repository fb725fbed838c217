/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps and the copies of boxes that read them, as sm_90's copy engine (TMA) does them.
   A global address is a plain pointer of this process.
   It must not know threads, barriers, PTX text or which memory is alive: who calls says that. */
#ifndef EMULATOR_TENSOR_MAP_H
#define EMULATOR_TENSOR_MAP_H

#include <stddef.h>
#include <stdint.h>

/* What a tensor map of 128 bytes holds here. Innermost dimension first. */
struct tensor_map {
    uint64_t magic; /* TENSOR_MAP_MAGIC in a map that was encoded */
    uint64_t address;
    uint64_t strides[4]; /* bytes, of dims 1.. */
    uint32_t last[5];    /* elements of a dimension, less one: 2^32 of them are allowed */
    uint16_t box[5];     /* tiled: elements spanned; im2col: channels, pixels */
    int16_t lower[3];    /* im2col: corners of the box that positions walk, dims 1.. */
    int16_t upper[3];    /* added to a dimension's last element */
    uint8_t steps[5];    /* that of the first dimension is ignored */
    uint8_t type;        /* CUtensorMapDataType */
    uint8_t rank;        /* 1..5; im2col 3..5 */
    uint8_t swizzle;     /* 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes */
    uint8_t is_im2col;
    uint8_t unused[29];
};
_Static_assert(sizeof(struct tensor_map) == 128, "a kernel's parameter has room for 128 bytes");

#define TENSOR_MAP_MAGIC UINT64_C(0x70616d2074666577)

/* As the driver: 0, or 1 (CUDA_ERROR_INVALID_VALUE) for what it refuses, and then the map is left as it was.
   Interleaved layouts and a fill other than zeros are refused too: nothing uses them. */
int tensor_map_encode_tiled(struct tensor_map *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                            int swizzle, int promotion, int fill);
int tensor_map_encode_im2col(struct tensor_map *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                             const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                             uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                             int fill);

/* Bytes that a copy of a box puts into shared memory and counts on its barrier: the whole box, whatever lies outside.
   0 for a map that was never encoded. */
size_t tensor_map_box_bytes(const struct tensor_map *map);

/* Bytes of one element of the tensor. */
size_t tensor_map_element_bytes(const struct tensor_map *map);

/* Asked before these bytes of global memory are touched: NULL, or what is wrong with that in words. */
typedef const char *tensor_map_ask(void *context, uint64_t host_address, size_t bytes);

/* Reads a box at the coordinates (innermost first) into `box`, which lies at the shared address `address`, a multiple
   of 128, in the order and the swizzled places of the copy engine; zeros from outside of the tensor. An im2col map
   takes the offsets of the filter's tap, one for each spatial dimension, w first; a tiled one ignores them.
   A map of type tf32 rounds to nearest, ties away from zero.
   NULL, or what is wrong in words. */
const char *tensor_map_load(const struct tensor_map *map, uint32_t address, const int32_t *coordinates,
                            const uint16_t *offsets, unsigned char *box, tensor_map_ask *reads, void *context);

/* Writes a tiled box from its swizzled bytes to the tensor; nothing outside it. NULL, or what is wrong. */
const char *tensor_map_store(const struct tensor_map *map, uint32_t address, const int32_t *coordinates,
                             const unsigned char *box, tensor_map_ask *writes, void *context);

#endif
