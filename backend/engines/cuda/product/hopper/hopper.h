/* SPDX-License-Identifier: Apache-2.0 */
/* The Hopper family: products as contraction.h describes them, for compute capability 9.0, whose operands the copy
   engine (TMA) brings into shared memory and whose tensor cores (wgmma) multiply them there. An operand is a plain
   matrix, or an image under filter taps. What follows the sum is the contraction family's. */
#ifndef WEFT_ENGINES_CUDA_HOPPER_H
#define WEFT_ENGINES_CUDA_HOPPER_H

#include "engines/cuda/product/prologue.h"
#include "graph/ops/concat.h"
#include "graph/ops/convolution.h"

enum { VIEW_DIMS_MAX = TENSOR_MAP_RANK_MAX, ENTRIES_MAX = 2 };

/* What a dimension of an operand's map is a coordinate of. PLANE: the image, where k is pixels, of each image
   apart. */
enum dim_role { ROLE_K, ROLE_OUTER, ROLE_TAP, ROLE_ENTRY, ROLE_IMAGE, ROLE_PLANE };

struct view_dim {
    enum dim_role role;
    int number; /* of the spatial dimension (TAP, IMAGE: 0..2, -1 for the image's number) or batch mode (ENTRY) */
    int64_t extent, stride;
    int64_t per_group; /* what a group, the first mode of the batch, adds to the coordinate */
};

/* An operand as the copy engine sees it; the first dimension is contiguous. */
struct map_view {
    bool is_k_major; /* its contiguous dimension is k (K-major); else its own index (MN-major) */
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

/* Which warpgroups make a tile: all consumers of a block; one, while the other runs the epilogue of its own; or those
   of two blocks, which sum half of k each. product/hopper/schedule_*.cuh */
enum schedule { SCHEDULE_COOPERATIVE, SCHEDULE_PINGPONG, SCHEDULE_CLUSTER_SPLIT };

/* wgmma makes 64 rows with four warps; so rows = 64 * row_blocks * (consumer warpgroups that share the tile). A thread
   holds row_blocks * columns / 2 accumulators. */
struct hopper_tile {
    int rows, columns; /* of the result */
    int row_blocks;    /* of 64 rows, for each consumer warpgroup */
    int stages;        /* of 128 bytes along k, where the epilogue leaves room for them */
    int cluster;       /* blocks along the rows that share the tile of B */
    double efficiency; /* share of the chip's rate under its power limit, many tiles of long k */
    enum schedule schedule;
};

static inline bool tile_is_pingpong(const struct hopper_tile *tile) { return tile->schedule == SCHEDULE_PINGPONG; }
/* Clusters of four are for skinny products alone: plan.c, pays_sharing(). */
static inline bool tile_is_skinny(const struct hopper_tile *tile) { return tile->cluster == 4; }
/* Blocks of a cluster that sum a share of k each. */
static inline int tile_splits(const struct hopper_tile *tile) {
    return tile->schedule == SCHEDULE_CLUSTER_SPLIT ? 2 : 1;
}

/* The scales of an operand's blocks, which are `outer` long along its own index and `steps` steps of k; both
   stand at most once where that is all there is. */
struct block_scales {
    bool exists, is_negative;
    int value;
    weftDataType_t type;
    int64_t outer, steps;
    int64_t stride, step_stride, entry_stride; /* elements from one block to the next; per batch entry */
};

/* Filled in this order: c and is_swapped by the analysis, the views by hopper_shape, scales by hopper_scales, tile,
   splits, steps and seconds by hopper_plan; how results leave (store to lines) is known only in build, once the tile
   is. */
struct hopper {
    struct contraction c;
    bool is_swapped; /* A and B have changed places */
    struct map_view view[OPERANDS];
    const struct concat_op *parts[OPERANDS]; /* which lie apart along k, each with a map of its own; NULL: one piece */
    bool is_matrix;                          /* both operands are plain matrices */
    int entry_count;
    int64_t channels;                        /* of k, within a tap */
    int64_t taps[COORDINATES];               /* of k */
    struct positions positions[COORDINATES]; /* of the image, if there is one */
    bool promotes;                           /* the tensor core sums one step at a time, and floats sum the steps */
    bool is_flipped;                         /* taps run backwards through the filter */
    bool is_planes;                          /* both operands are matrices of pixels for each image, which is a tap */
    bool k_is_pixels;                        /* of a filter gradient; or images, of which the others are taps: */
    bool is_by_images;
    struct block_scales scales[OPERANDS];
    const struct hopper_tile *tile;
    bool is_early[OPERANDS];               /* its first slots are loaded before the kernel before has ended */
    bool stores_boxes;                     /* the staged result is a matrix for the copy engine */
    const struct epilogue_operand *second; /* the other one of two of 16 bits that leave so, as matrices */
    const struct epilogue_operand
        *store;                 /* of c.epilogue: the one result, when it leaves through shared memory; else NULL */
    int stages, epilogue_tiles; /* of the tile; of results */
    bool has_aux_load;          /* an operand that lies like the result is copied into its epilogue tiles: */
    int auxiliary;              /* which of c.epilogue */
    bool keeps_column;          /* a block keeps to one column of tiles, whose partial sums it leaves once */
    int64_t lines[SPANS];       /* of partial sums in the workspace */
    int splits;
    int64_t steps, steps_per_split;
    double seconds;
};

/* ---- shape.c: from modes and geometry to views ---- */

/* Orders what a filter gradient's result counts as views are walked, once the contraction has its shape: before its
   plan. */
void hopper_order(struct hopper *h);
/* The views of a contraction that has its plan; NOT_SUPPORTED and a sentence for what the copy engine cannot serve. */
weftStatus_t hopper_shape(struct hopper *h);

/* Finds operands that are read in parts; NOT_SUPPORTED, with a sentence, for what else would be, and for parts that do
   not end where steps of k do. After hopper_shape. */
weftStatus_t hopper_find_parts(struct hopper *h);
/* The stride of a part in a dimension of its operand's map but the first, in elements. */
int64_t hopper_part_stride(const struct hopper *h, int operand, int part, int dim);
/* Whether a product may read a value in parts: along k. */
bool hopper_gathers(const struct graph *graph, int node, int value);

/* ---- scales.c: operands of FP8 with scales of blocks ---- */

static inline bool hopper_is_scaled(const struct hopper *h) {
    return h->scales[OPERAND_A].exists || h->scales[OPERAND_B].exists;
}
/* The scales of a contraction that has its shape; NOT_SUPPORTED and a sentence for blocks that steps or maps do not
   meet. */
weftStatus_t hopper_scales(struct hopper *h);
/* Columns of a tile that share their scale of B, for each step. */
int hopper_scale_columns(const struct hopper *h, const struct hopper_tile *tile);
/* a_scale_at(p, z, row, step): where the scale of a row is for a step; a_scale_step(p, step): how far from that of the
   step before; a_scale(p, at): the scale; the same of b. */
void hopper_emit_scales(struct kernel_source *source, const struct hopper *h);

/* ---- plan.c: tile and splits ---- */

enum {
    HOPPER_TILE_ROWS = 33,   /* of the table */
    HOPPER_SPLITS_MAX = 128, /* of k, each a block of its own */
    HOPPER_K_BYTES = 128,    /* of k in a step: a row of the 128-byte swizzle */
    HOPPER_PANEL = 64,       /* elements of an MN-major operand that lie side by side in shared memory */
};

/* Fills in the rest; the tile stays NULL where none fits. */
void hopper_plan(struct hopper *h, const struct device *device, const struct knob_choices *knobs);
/* Clusters, or of a cluster split its halves, that the chip runs at one time. */
int64_t hopper_clusters(const struct hopper_tile *tile, const struct device *device);
/* Tiles of whole clusters, over the batch. */
int64_t hopper_tiles(const struct hopper *h, const struct hopper_tile *tile);
int64_t hopper_tiles_along(const struct hopper *h, enum index index);
/* Rows of tiles of a rasterisation group, all groups of about equal height: so many that what is at work at one time
   has few rows and columns, whose operands stay in L2. One where blocks keep to their columns: row by row, a number of
   clusters that the tiles of a row divide meets the same columns again. */
int64_t hopper_raster_rows(const struct hopper *h, const struct device *device, int64_t tiles_m, int64_t tiles_n);
/* What sums meet in memory on their way. */
int hopper_operands(const struct hopper *h);
/* Whether registers hold all that a narrow tile meets, an element in each, beside its sums from the first product on:
   no other tile's products hide reading it. */
bool hopper_reads_tile(const struct hopper *h);

/* Whether registers hold the sums, and beside them those of a step of one block of rows. */
bool hopper_can_promote(const struct hopper_tile *tile);
/* Whether threads gather neighbours of a column, where they are neighbours in memory. */
bool hopper_gathers_rows(const struct hopper *h);
/* What `units` of work for a cluster take, each of `steps` along k and `epilogue` instructions per element of
   the result, when `moving` is the time that all bytes need. */
double hopper_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                      double epilogue, double moving);

/* ---- hopper.c: what other families put around the same kernel ---- */

/* Whether a chip has the copy engine and wgmma; the refusal names who wants them: "stem family". */
weftStatus_t hopper_check_device(const struct device *device, const char *family);

/* Stages and epilogue tiles that fit in shared memory, once it is known whether results are staged. */
void hopper_fit(struct hopper *h);
void hopper_emit_tile(struct kernel_source *source, const struct hopper *h);
/* How tiles are numbered. */
void hopper_emit_scheduler(struct kernel_source *source, const struct hopper *h, const struct device *device,
                           int64_t batches, int64_t rows, int64_t columns);
/* Ends the printing: which kernel of product/hopper/product_*_sm90.cuh it is, by main loop and schedule. */
weftStatus_t hopper_build_kernel(struct kernel_source *source, struct cuda_kernel *kernel, const struct hopper *h,
                                 struct arena *arena);
/* Grid, block and shared memory for so many tiles of whole clusters. */
void hopper_launch(struct cuda_kernel *kernel, const struct hopper *h, const struct device *device, int64_t tiles);

/* The one result, if epilogue tiles hold it. */
static inline const struct epilogue_operand *hopper_find_store(const struct hopper *h) {
    const struct epilogue_operand *store = NULL;
    for (int bytes = 1; bytes <= 4 && !store; bytes *= 2)
        store = epilogue_find_staged(&h->c, bytes);
    return store;
}

/* Columns of an epilogue tile, and bytes of each of their elements. */
static inline int hopper_result_bytes(const struct hopper *h) {
    return h->store ? (int)dtype_bytes(h->store->type, 1) : 2;
}
/* A row of an epilogue tile is 128 bytes, the span of the swizzle: 64 elements of 16 bits or 32 of 32. Tiles that 64
   does not divide take half of it. */
static inline int hopper_epilogue_columns(const struct hopper *h) {
    return hopper_result_bytes(h) == 4 || h->tile->columns % 64 != 0 ? 32 : 64;
}

/* ---- emit.c: text, maps and arguments ---- */

/* Tensor maps: the first fields of the arguments. */
void hopper_emit_maps(struct kernel_source *source, const struct hopper *h);
enum tensor_map_type hopper_map_type(weftDataType_t type);
void hopper_emit_operands(struct kernel_source *source, const struct hopper *h);
/* How the one staged result leaves; after epilogue(). */
void hopper_emit_result(struct kernel_source *source, const struct hopper *h);
/* Where the first operand of a product lies: in shared memory, K-major or MN-major; or in registers. */
enum wgmma_a { WGMMA_A_K_MAJOR, WGMMA_A_MN_MAJOR, WGMMA_A_REGISTERS };
/* The tensor core product of a tile's width: multiply_accumulate(c, a, b, adds), summed in sum_t: i32 of whole numbers,
   else float. */
void wgmma_emit(struct text *code, int columns, weftDataType_t a, weftDataType_t b, enum wgmma_a from,
                bool b_is_mn_major);
/* pair_of(results): what product/hopper/epilogue_staged.cuh wants to know of the one result. */
void epilogue_emit_pairs(struct kernel_source *source, const struct contraction *c,
                         const struct epilogue_operand *store);

#endif
