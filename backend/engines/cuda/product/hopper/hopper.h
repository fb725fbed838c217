/* SPDX-License-Identifier: Apache-2.0 */
/* The Hopper family: products as contraction.h describes them, for compute capability 9.0, whose factors the copy
   engine (TMA) brings into shared memory and whose tensor cores (wgmma) multiply them there. A factor is a plain
   matrix, or an image under filter taps. What follows the sum is the contraction family's. */
#ifndef WEFT_ENGINES_CUDA_HOPPER_H
#define WEFT_ENGINES_CUDA_HOPPER_H

#include "engines/cuda/product/prologue.h"
#include "graph/ops/convolution.h"

enum { VIEW_DIMS_MAX = TENSOR_MAP_RANK_MAX, ENTRIES_MAX = 2 };

/* What a dimension of a factor's map is a coordinate of. PLANE: the image, where the depth is pixels, of each image apart. */
enum walk { WALK_DEPTH, WALK_OUTER, WALK_TAP, WALK_ENTRY, WALK_IMAGE, WALK_PLANE };

struct view_dim {
    enum walk walk;
    int number; /* of the spatial dimension (TAP, IMAGE: 0..2, -1 for the image's number) or batch digit (ENTRY) */
    int64_t extent, stride;
    int64_t per_group; /* what a group, the first digit of the batch, adds to the coordinate */
};

/* A factor as the copy engine sees it; the first dimension is contiguous. */
struct map_view {
    bool along_depth; /* its contiguous dimension is the depth (K-major); else its own index (MN-major) */
    bool is_image;
    int count;
    struct view_dim dims[VIEW_DIMS_MAX];
};

/* Positions of an image in one spatial dimension, and the taps at each: position i reads from pixel corner + i *
   stride on, tap t `offset` + t * tap_step pixels further, which is never negative. */
struct positions {
    int64_t count, stride, corner;
    int64_t taps, offset, tap_step;
    int64_t size;       /* of the image */
    struct phase phase; /* of stride 0: the same taps everywhere */
};

struct hopper_tile {
    int rows, columns, row_blocks, stages, cluster;
    double efficiency; /* share of the chip's rate under its power limit, many tiles of long depth */
    int parts;         /* of the depth, summed by as many blocks of a cluster */
    bool alternates;   /* each warpgroup makes tiles of its own, and ends one while the other multiplies the next */
};

/* The scales of a factor's blocks, which are `outer` long along its own index and `steps` steps of the depth; both stand
   at most once where that is all there is. */
struct block_scales {
    bool exists, is_negative;
    int value;
    weftDataType_t type;
    int64_t outer, steps;
    int64_t stride, step_stride, entry_stride; /* elements from one block to the next; per batch entry */
};

struct hopper {
    struct contraction c;
    bool is_turned; /* A and B have changed places */
    struct map_view view[FACTORS];
    bool is_matrix; /* both factors are plain matrices */
    int entry_count;
    int64_t channels;                        /* of the depth, within a tap */
    int64_t taps[COORDINATES];               /* of the depth */
    struct positions positions[COORDINATES]; /* of the image, if there is one */
    bool promotes;                           /* the tensor core sums one step at a time, and floats sum the steps */
    bool is_flipped;                         /* taps run backwards through the filter */
    bool is_planes;                          /* both factors are matrices of pixels for each image, which is a tap */
    bool depth_is_pixels;                    /* of a filter gradient; or images, of which the others are taps: */
    bool is_by_images;
    struct block_scales scales[FACTORS];
    const struct hopper_tile *tile;
    bool stores_boxes;             /* the staged result is a matrix for the copy engine */
    const struct finisher *second; /* the other one of two of 16 bits that leave so, as matrices */
    const struct finisher *store;  /* of c.finish: the one result, when it leaves through shared memory; else NULL */
    int stages, slabs_in_flight;   /* of the tile; of results */
    bool brings; /* operand `brought` of c.finish, which lies like the result, is copied into its slabs */
    int brought;
    bool stays;           /* a block keeps to one column of tiles, whose totals it leaves once */
    int64_t lines[SPANS]; /* of parts of totals in the workspace */
    int splits;
    int64_t steps, steps_per_split;
    double seconds;
};

/* ---- shape.c: from digits and geometry to views ---- */

/* Orders what a filter gradient's result counts as views are walked, once the contraction has its shape: before its
   plan. */
void hopper_order(struct hopper *h);
/* The views of a contraction that has its plan; NOT_SUPPORTED and a sentence for what the copy engine cannot serve. */
weftStatus_t hopper_shape(struct hopper *h);

/* ---- scales.c: factors of FP8 with scales of blocks ---- */

static inline bool hopper_is_scaled(const struct hopper *h) {
    return h->scales[FACTOR_A].exists || h->scales[FACTOR_B].exists;
}
/* The scales of a contraction that has its shape; NOT_SUPPORTED and a sentence for blocks that steps or maps do not meet. */
weftStatus_t hopper_scales(struct hopper *h);
/* Columns of a tile that share their scale of B, for each step. */
int hopper_scale_columns(const struct hopper *h, const struct hopper_tile *tile);
/* a_scale_at(p, z, row, step): where the scale of a row is for a step; a_scale_step(p, step): how far from that of the step
   before; a_scale(p, at): the scale; the same of b. */
void hopper_print_scales(struct kernel_print *print, const struct hopper *h);

/* ---- plan.c: tile and splits ---- */

enum { HOPPER_TILE_ROWS = 31, HOPPER_SPLITS_MAX = 128, HOPPER_DEPTH_BYTES = 128 };

/* Fills in the rest; the tile stays NULL where none fits. */
void hopper_plan(struct hopper *h, const struct device *device, const struct knob_choices *knobs);
/* Tiles of whole clusters, over the batch. */
int64_t hopper_tiles(const struct hopper *h, const struct hopper_tile *tile);
int64_t hopper_tiles_along(const struct hopper *h, enum index index);
/* Rows of tiles that are walked together, in bands of about equal height: so many that what is at work at one time has
   few rows and columns, whose factors stay in L2. One where blocks keep to their columns: row by row, a number of
   clusters that the tiles of a row divide meets the same columns again. */
int64_t hopper_band(const struct hopper *h, const struct device *device, int64_t tiles_m, int64_t tiles_n);
/* What sums meet in memory on their way. */
int hopper_operands(const struct hopper *h);

/* Whether registers hold the sums, and beside them those of a step of one block of rows. */
bool hopper_can_promote(const struct hopper_tile *tile);
/* What `units` of work for a cluster take, each of `steps` along the depth and `finishing` instructions per element of the
   result, when `moving` is the time that all bytes need. */
double hopper_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                      double finishing, double moving);

/* ---- hopper.c: what other families put around the same kernel ---- */

/* Whether a chip has the copy engine and wgmma; the refusal names who wants them: "stem family". */
weftStatus_t hopper_check_device(const struct device *device, const char *family);

/* Stages and slabs of a tile that fit in shared memory, once it is known whether results are staged. */
void hopper_fit(struct hopper *h);
void hopper_print_tile(struct kernel_print *print, const struct hopper *h);
/* How tiles are numbered. */
void hopper_print_walk(struct kernel_print *print, const struct hopper *h, const struct device *device, int64_t batches,
                       int64_t rows, int64_t columns);
/* Grid, block and shared memory for so many tiles of whole clusters. */
void hopper_launch(struct cuda_kernel *kernel, const struct hopper *h, const struct device *device, int64_t tiles);

/* The one result, if slabs hold it. */
static inline const struct finisher *hopper_find_store(const struct hopper *h) {
    const struct finisher *store = NULL;
    for (int bytes = 1; bytes <= 4 && !store; bytes *= 2)
        store = finish_find_staged(&h->c, bytes);
    return store;
}

/* Columns of a slab, and bytes of each of their elements. */
static inline int hopper_result_bytes(const struct hopper *h) {
    return h->store ? (int)dtype_bytes(h->store->type, 1) : 2;
}
static inline int hopper_slab_columns(const struct hopper *h) {
    return hopper_result_bytes(h) == 4 || h->tile->columns % 64 != 0 ? 32 : 64;
}

/* ---- print.c: text, maps and arguments ---- */

/* Tensor maps: the first fields of the arguments. */
void hopper_print_maps(struct kernel_print *print, const struct hopper *h);
enum tensor_map_type hopper_map_type(weftDataType_t type);
void hopper_print_factors(struct kernel_print *print, const struct hopper *h);
/* How the one staged result leaves; after finish(). */
void hopper_print_result(struct kernel_print *print, const struct hopper *h);
/* Where the first factor of a product lies: in shared memory, along the depth or turned, along its own index; or in
   registers. */
enum wgmma_a { WGMMA_A_ALONG, WGMMA_A_TURNED, WGMMA_A_HELD };
/* The tensor core product of a tile's width: multiply_accumulate(c, a, b, adds), summed in sum_t: i32 of whole numbers,
   else float. */
void wgmma_print(struct text *code, int columns, weftDataType_t a, weftDataType_t b, enum wgmma_a from,
                 bool b_is_turned);
/* The same of two 16-bit factors, of which the first comes from registers: multiply_accumulate(c, a, b, adds). */
void wgmma_print_registers(struct text *code, int columns, weftDataType_t type);
/* What product/hopper/staging.cuh wants to know of the one result. */
void slabs_print(struct kernel_print *print, const struct contraction *c, const struct finisher *store);

#endif
