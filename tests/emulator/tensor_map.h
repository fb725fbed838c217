/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps and the box copies that use them, like those of the copy engine (TMA) of sm_90. A global address is a
   plain pointer of this process. It must not depend on threads, barriers, PTX text or memory lifetimes: the caller's
   callback checks addresses. */
#ifndef EMULATOR_TENSOR_MAP_H
#define EMULATOR_TENSOR_MAP_H

#include <stddef.h>
#include <stdint.h>

/* The content of a 128-byte tensor map in the emulator. The innermost dimension comes first. */
struct tensor_map {
    uint64_t magic; /* TENSOR_MAP_MAGIC if the map was encoded */
    uint64_t address;
    uint64_t strides[4]; /* bytes, for dims 1 and up */
    uint32_t last[5];    /* extent of each dimension minus one, because an extent may be 2^32 */
    uint16_t box[5];     /* tiled: elements spanned; im2col: channels, pixels */
    int16_t lower[3];    /* im2col: corners of the box of positions, for dims 1 and up */
    int16_t upper[3];    /* offset from the last element of a dimension */
    uint8_t steps[5];    /* the step of the first dimension is ignored */
    uint8_t type;        /* CUtensorMapDataType */
    uint8_t rank;        /* 1..5; im2col 3..5 */
    uint8_t swizzle;     /* 0: none, 1: 32 bytes, 2: 64 bytes, 3: 128 bytes */
    uint8_t is_im2col;
    uint8_t unused[29];
};
_Static_assert(sizeof(struct tensor_map) == 128, "a kernel's parameter has room for 128 bytes");

#define TENSOR_MAP_MAGIC UINT64_C(0x70616d2074666577)

/* Like the driver, these return 0, or 1 (CUDA_ERROR_INVALID_VALUE) for invalid arguments, in which case the map is
   unchanged. Interleaved layouts and fill values other than zero are rejected as well, because no kernel uses them. */
int tensor_map_encode_tiled(struct tensor_map *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                            int swizzle, int promotion, int fill);
int tensor_map_encode_im2col(struct tensor_map *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                             const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                             uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                             int fill);

/* Number of bytes that the copy of a box writes to shared memory and counts on its barrier: the whole box, including
   the part that is out of bounds. 0 for a map that was never encoded. */
size_t tensor_map_box_bytes(const struct tensor_map *map);

/* Bytes per element of the tensor. */
size_t tensor_map_element_bytes(const struct tensor_map *map);

/* Called before these bytes of global memory are accessed. Returns NULL, or an error message. */
typedef const char *tensor_map_ask(void *context, uint64_t host_address, size_t bytes);

/* Loads the box at the coordinates (innermost first) into `box`, which has the shared address `address`, a multiple of
   128, in the order and with the swizzle of the copy engine; elements outside the tensor are zero. An im2col map uses
   the offsets of the filter tap, one for each spatial dimension, w first; a tiled map ignores them. A map of type tf32
   rounds to nearest, ties away from zero. Returns NULL, or an error message. */
const char *tensor_map_load(const struct tensor_map *map, uint32_t address, const int32_t *coordinates,
                            const uint16_t *offsets, unsigned char *box, tensor_map_ask *reads, void *context);

/* Stores a tiled box from its swizzled bytes to the tensor; elements outside the tensor are dropped. Returns NULL, or
   an error message. */
const char *tensor_map_store(const struct tensor_map *map, uint32_t address, const int32_t *coordinates,
                             const unsigned char *box, tensor_map_ask *writes, void *context);

#endif
