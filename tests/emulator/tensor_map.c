/* SPDX-License-Identifier: Apache-2.0 */
/* Validation of tensor maps, and copies of boxes. A copy iterates over rows. A row is contiguous in the tensor and,
   except for the swizzle, in the box. Tiled and im2col boxes differ only in the addresses of their rows. It must not
   depend on threads, barriers, PTX text or memory lifetimes. */
#include "tensor_map.h"

#include <stdbool.h>
#include <string.h>

enum { OK, INVALID_VALUE };
enum { RANK_MAX = 5, BOX_MAX = 256, CHANNELS_MAX = 256, PIXELS_MAX = 1024, STEP_MAX = 8 };
enum { F32_FTZ = 10, TF32 = 11, TF32_FTZ = 12, TYPES };
enum { ROW_BYTES_MAX = BOX_MAX * 8, CHUNK = 16 };

static const uint8_t TYPE_BYTES[TYPES] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

/* Checks that apply to both kinds of maps. A tensor may overlap itself: drivers do not compare strides. */
static bool is_valid(const struct tensor_map *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                     const uint64_t *strides, const uint32_t *steps, uint32_t row_elements) {
    if ((uintptr_t)map % 64 || type < 0 || type >= TYPES || rank < 1 || rank > RANK_MAX || address % 16)
        return false;
    for (uint32_t i = 0; i < rank; i++)
        if (!dims[i] || dims[i] > UINT64_C(1) << 32 || steps[i] < 1 || steps[i] > STEP_MAX ||
            (i + 1 < rank && (strides[i] % 16 || strides[i] >= UINT64_C(1) << 40)))
            return false;
    return row_elements * TYPE_BYTES[type] % CHUNK == 0;
}

static bool are_modes_valid(int type, uint32_t row_elements, int interleave, int swizzle, int promotion, int fill) {
    return !interleave && !fill && promotion >= 0 && promotion <= 3 && swizzle >= 0 && swizzle <= 3 &&
           (!swizzle || row_elements * TYPE_BYTES[type] <= 16u << swizzle);
}

static struct tensor_map tensor_of(int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                                   const uint64_t *strides, const uint32_t *steps, int swizzle) {
    struct tensor_map map = {.magic = TENSOR_MAP_MAGIC,
                             .address = address,
                             .type = (uint8_t)type,
                             .rank = (uint8_t)rank,
                             .swizzle = (uint8_t)swizzle};
    for (uint32_t i = 0; i < rank; i++) {
        map.last[i] = (uint32_t)(dims[i] - 1);
        map.steps[i] = (uint8_t)steps[i];
        if (i + 1 < rank)
            map.strides[i] = strides[i];
    }
    return map;
}

int tensor_map_encode_tiled(struct tensor_map *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                            int swizzle, int promotion, int fill) {
    for (uint32_t i = 0; i < rank && i < RANK_MAX; i++)
        if (box[i] < 1 || box[i] > BOX_MAX)
            return INVALID_VALUE;
    if (!is_valid(map, type, rank, address, dims, strides, steps, box[0]) ||
        !are_modes_valid(type, box[0], interleave, swizzle, promotion, fill))
        return INVALID_VALUE;
    *map = tensor_of(type, rank, address, dims, strides, steps, swizzle);
    for (uint32_t i = 0; i < rank; i++)
        map->box[i] = (uint16_t)box[i];
    return OK;
}

/* The corners of all spatial dimensions share 16 bits: 16, 8 or 5 per dimension. */
static bool are_corners_valid(uint32_t rank, const uint64_t *dims, const int *lower, const int *upper) {
    static const int ends[RANK_MAX + 1] = {[3] = 32768, [4] = 128, [5] = 16};
    int end = ends[rank];
    for (uint32_t i = 0; i + 2 < rank; i++) {
        if (lower[i] < -end || lower[i] >= end || upper[i] < -end || upper[i] >= end)
            return false;
        if ((int64_t)dims[i + 1] - 1 + upper[i] < lower[i]) /* no position */
            return false;
    }
    return true;
}

int tensor_map_encode_im2col(struct tensor_map *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                             const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                             uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                             int fill) {
    if (rank < 3 || channels < 1 || channels > CHANNELS_MAX || pixels < 1 || pixels > PIXELS_MAX ||
        !is_valid(map, type, rank, address, dims, strides, steps, channels) ||
        !are_modes_valid(type, channels, interleave, swizzle, promotion, fill) ||
        !are_corners_valid(rank, dims, lower, upper))
        return INVALID_VALUE;
    *map = tensor_of(type, rank, address, dims, strides, steps, swizzle);
    map->is_im2col = 1;
    map->box[0] = (uint16_t)channels;
    map->box[1] = (uint16_t)pixels;
    for (uint32_t i = 0; i + 2 < rank; i++) {
        map->lower[i] = (int16_t)lower[i];
        map->upper[i] = (int16_t)upper[i];
    }
    return OK;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

struct copy {
    const struct tensor_map *map;
    uint32_t address; /* address of the box in shared memory */
    size_t row_bytes;
    bool is_inside; /* part of the box is inside the tensor */
    tensor_map_ask *ask;
    void *context;
};

static size_t row_bytes(const struct tensor_map *map) { return (size_t)map->box[0] * TYPE_BYTES[map->type]; }

/* According to the driver's manual, a box spans box[i] elements, of which every steps[i]-th one is copied, ceil(box[i]
   / steps[i]) in all. The step of dimension 0 is ignored without interleaving. */
static uint32_t box_count(const struct tensor_map *map, int i) {
    return (uint32_t)(map->box[i] + map->steps[i] - 1) / map->steps[i];
}

static size_t row_count(const struct tensor_map *map) {
    size_t rows = 1;
    if (map->is_im2col)
        return map->box[1];
    for (int i = 1; i < map->rank; i++)
        rows *= box_count(map, i);
    return rows;
}

size_t tensor_map_box_bytes(const struct tensor_map *map) {
    return map->magic == TENSOR_MAP_MAGIC ? row_count(map) * row_bytes(map) : 0;
}

size_t tensor_map_element_bytes(const struct tensor_map *map) { return TYPE_BYTES[map->type]; }

/* Swizzled offset in the box of the 16 bytes at `offset`: bits 4 and up of the shared address are XORed with bits 7 and
   up. */
static size_t swizzled(const struct copy *copy, size_t offset) {
    uint32_t at = copy->address + (uint32_t)offset, turn = (1u << copy->map->swizzle) - 1;
    return (at ^ ((at >> 7 & turn) << 4)) - copy->address;
}

/* The part of a row that is inside the tensor, starting `skip` bytes into the row; empty if `bytes` is 0. */
struct run {
    uint64_t address;
    size_t skip, bytes;
};

/* `at` is the first element of a row; outer coordinates may be out of bounds. */
static struct run run_of(const struct tensor_map *map, const int64_t at[RANK_MAX]) {
    struct run run = {.address = map->address};
    int64_t unit = TYPE_BYTES[map->type], first = at[0] < 0 ? -at[0] : 0;
    int64_t end = (int64_t)map->last[0] + 1 - at[0];
    if (end > map->box[0])
        end = map->box[0];
    if (end <= first)
        return run;
    for (int i = 1; i < map->rank; i++) {
        if (at[i] < 0 || at[i] > (int64_t)map->last[i])
            return run;
        run.address += (uint64_t)at[i] * map->strides[i - 1];
    }
    run.address += (uint64_t)((at[0] + first) * unit);
    run.skip = (size_t)(first * unit);
    run.bytes = (size_t)((end - first) * unit);
    return run;
}

/* Rounds to nearest, ties away from zero, and maps NaN to the canonical NaN, like cvt.rna.tf32. The manual documents
   that a map of this type rounds, but not how. */
static void round_to_tf32(unsigned char *bytes, size_t size) {
    for (size_t i = 0; i < size; i += sizeof(uint32_t)) {
        uint32_t code;
        memcpy(&code, bytes + i, sizeof code);
        uint32_t magnitude = code & 0x7fffffff;
        code = magnitude > 0x7f800000 ? 0x7fffffff : (code + 0x1000) & 0xffffe000;
        memcpy(bytes + i, &code, sizeof code);
    }
}

static const char *load_row(struct copy *copy, const int64_t at[RANK_MAX], unsigned char *box, size_t offset) {
    unsigned char row[ROW_BYTES_MAX];
    struct run run = run_of(copy->map, at);
    copy->is_inside |= run.bytes > 0;
    const char *wrong = run.bytes ? copy->ask(copy->context, run.address, run.bytes) : NULL;
    if (wrong)
        return wrong;
    if (run.bytes < copy->row_bytes)
        memset(row, 0, copy->row_bytes);
    if (run.bytes)
        memcpy(row + run.skip, (const void *)(uintptr_t)run.address, run.bytes);
    if (copy->map->type == TF32)
        round_to_tf32(row + run.skip, run.bytes);
    if (!copy->map->swizzle)
        memcpy(box + offset, row, copy->row_bytes);
    else
        for (size_t i = 0; i < copy->row_bytes; i += CHUNK)
            memcpy(box + swizzled(copy, offset + i), row + i, CHUNK);
    return NULL;
}

static const char *store_row(struct copy *copy, const int64_t at[RANK_MAX], const unsigned char *box, size_t offset) {
    unsigned char row[ROW_BYTES_MAX];
    struct run run = run_of(copy->map, at);
    const char *wrong = run.bytes ? copy->ask(copy->context, run.address, run.bytes) : NULL;
    if (wrong || !run.bytes)
        return wrong;
    for (size_t i = 0; i < copy->row_bytes; i += CHUNK)
        memcpy(row + i, box + swizzled(copy, offset + i), CHUNK);
    memcpy((void *)(uintptr_t)run.address, row + run.skip, run.bytes);
    return NULL;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static const char *begin(struct copy *copy) {
    const struct tensor_map *map = copy->map;
    if (map->magic != TENSOR_MAP_MAGIC)
        return "the tensor map was never encoded";
    if (copy->address % 128)
        return "the shared address of a box is no multiple of 128";
    if (map->type == F32_FTZ || map->type == TF32_FTZ)
        return "tensor maps that flush subnormals are not emulated";
    copy->row_bytes = row_bytes(map);
    if (map->swizzle && copy->row_bytes != (size_t)CHUNK << map->swizzle)
        return "a swizzled box with rows shorter than the swizzle is not emulated";
    return NULL;
}

/* Advances to the next row of a tiled box; `index` counts rows in each dimension, starting at 1. */
static void step_in_box(const struct tensor_map *map, const int32_t *coordinates, uint32_t index[RANK_MAX],
                        int64_t at[RANK_MAX]) {
    for (int i = 1; i < map->rank; i++) {
        at[i] += map->steps[i];
        if (++index[i] < box_count(map, i))
            return;
        index[i] = 0;
        at[i] = coordinates[i];
    }
}

static int64_t highest(const struct tensor_map *map, int spatial) {
    return (int64_t)map->last[spatial + 1] + map->upper[spatial];
}

/* Advances to the next position of a convolution: w first, then h, d and the image. */
static void step_in_image(const struct tensor_map *map, int64_t at[RANK_MAX]) {
    int spatial = map->rank - 2;
    for (int i = 0; i < spatial; i++) {
        at[i + 1] += map->steps[i + 1];
        if (at[i + 1] <= highest(map, i))
            return;
        at[i + 1] = map->lower[i];
    }
    at[spatial + 1]++;
}

/* For a load that is completely out of bounds, the hardware still checks the address at which the map begins; such a
   store is dropped. */
static const char *end(const struct copy *copy) {
    return copy->is_inside ? NULL : copy->ask(copy->context, copy->map->address, CHUNK);
}

static const char *load_pixels(struct copy *copy, const int32_t *coordinates, const uint16_t *offsets,
                               unsigned char *box) {
    static const int offset_ends[RANK_MAX + 1] = {[3] = 65536, [4] = 256, [5] = 32};
    const struct tensor_map *map = copy->map;
    int spatial = map->rank - 2;
    int64_t at[RANK_MAX] = {0};
    for (int i = 0; i < map->rank; i++)
        at[i] = coordinates[i];
    for (int i = 0; i < spatial; i++) {
        if (at[i + 1] < map->lower[i] || at[i + 1] > highest(map, i))
            return "an im2col copy starts outside of the map's corners";
        if (offsets[i] >= offset_ends[map->rank])
            return "an im2col offset has more bits than the copy engine takes";
    }
    for (size_t pixel = 0; pixel < map->box[1]; pixel++) {
        int64_t read[RANK_MAX];
        memcpy(read, at, sizeof read);
        for (int i = 0; i < spatial; i++)
            read[i + 1] += offsets[i];
        const char *wrong = load_row(copy, read, box, pixel * copy->row_bytes);
        if (wrong)
            return wrong;
        step_in_image(map, at);
    }
    return NULL;
}

const char *tensor_map_load(const struct tensor_map *map, uint32_t address, const int32_t *coordinates,
                            const uint16_t *offsets, unsigned char *box, tensor_map_ask *reads, void *context) {
    struct copy copy = {.map = map, .address = address, .ask = reads, .context = context};
    const char *wrong = begin(&copy);
    if (wrong)
        return wrong;
    if (map->is_im2col)
        return offsets ? load_pixels(&copy, coordinates, offsets, box) : "a tiled copy with an im2col map";
    uint32_t index[RANK_MAX] = {0};
    int64_t at[RANK_MAX] = {0};
    for (int i = 0; i < map->rank; i++)
        at[i] = coordinates[i];
    for (size_t row = 0, rows = row_count(map); row < rows && !wrong; row++) {
        wrong = load_row(&copy, at, box, row * copy.row_bytes);
        step_in_box(map, coordinates, index, at);
    }
    return wrong ? wrong : end(&copy);
}

const char *tensor_map_store(const struct tensor_map *map, uint32_t address, const int32_t *coordinates,
                             const unsigned char *box, tensor_map_ask *writes, void *context) {
    struct copy copy = {.map = map, .address = address, .ask = writes, .context = context};
    const char *wrong = begin(&copy);
    if (wrong)
        return wrong;
    if (map->is_im2col)
        return "stores through im2col maps are not emulated";
    uint32_t index[RANK_MAX] = {0};
    int64_t at[RANK_MAX] = {0};
    for (int i = 0; i < map->rank; i++)
        at[i] = coordinates[i];
    for (size_t row = 0, rows = row_count(map); row < rows && !wrong; row++) {
        wrong = store_row(&copy, at, box, row * copy.row_bytes);
        step_in_box(map, coordinates, index, at);
    }
    return wrong;
}
