/* SPDX-License-Identifier: Apache-2.0 */
/* The Hopper family: products as in contraction.h, for compute capability 9.0. TMA loads the operands into shared
   memory, and wgmma multiplies them there. An operand is a plain matrix, or an image with filter taps. The epilogue is
   that of the contraction family. */
#ifndef WEFT_ENGINES_CUDA_HOPPER_H
#define WEFT_ENGINES_CUDA_HOPPER_H

#include "engines/cuda/product/hopper/pipeline_geometry.h"
#include "engines/cuda/product/prologue.h"
#include "graph/ops/concat.h"
#include "graph/ops/convolution.h"

enum { VIEW_DIMS_MAX = TENSOR_MAP_RANK_MAX, ENTRIES_MAX = 2 };

/* The meaning of a dimension of an operand's map. PLANE: the image, if k is the pixels of separate images. */
enum dim_role { ROLE_K, ROLE_OUTER, ROLE_TAP, ROLE_ENTRY, ROLE_IMAGE, ROLE_PLANE };

struct view_dim {
    enum dim_role role;
    int number; /* spatial dimension (TAP, IMAGE: 0..2, -1 for the image's number) or batch mode (ENTRY) */
    int64_t extent, stride;
    int64_t per_group; /* offset of the coordinate per group, the first mode of the batch */
};

/* An operand's tensor map; the first dimension is contiguous. */
struct map_view {
    bool is_k_major; /* the contiguous dimension is k (K-major), otherwise the own index (MN-major) */
    bool is_image;
    int count;
    struct view_dim dims[VIEW_DIMS_MAX];
};

/* Positions of an image in one spatial dimension, and their taps: position i starts at pixel corner + i * stride, and
   its tap t is `offset` + t * tap_step pixels further on, which is never negative. */
struct positions {
    int64_t count, stride, corner;
    int64_t taps, offset, tap_step;
    int64_t size;       /* size of the image */
    struct phase phase; /* with stride 0 if all positions have the same taps */
};

/* The warpgroups that compute a tile: all consumers of a block; one of them, while the other runs the epilogue of its
   own tile; or those of two blocks, each of which sums half of k. See product/hopper/schedule_*.cuh. */
enum schedule { SCHEDULE_COOPERATIVE, SCHEDULE_PINGPONG, SCHEDULE_CLUSTER_SPLIT };

/* wgmma computes 64 rows with four warps, so rows = 64 * row_blocks * (consumer warpgroups that share the tile). A
   thread holds row_blocks * columns / 2 accumulators. */
struct hopper_tile {
    int rows, columns; /* size in elements of the result */
    int row_blocks;    /* blocks of 64 rows per consumer warpgroup */
    int stages;        /* stages of 128 bytes along k; the epilogue may reduce the number */
    int cluster;       /* blocks along the rows that share the tile of B */
    double efficiency; /* share of the chip's rate at its power limit, for many tiles with long k */
    enum schedule schedule;
};

static inline bool tile_is_pingpong(const struct hopper_tile *tile) { return tile->schedule == SCHEDULE_PINGPONG; }
/* Clusters of four are only for skinny products: see should_share() in plan.c. */
static inline bool tile_is_skinny(const struct hopper_tile *tile) { return tile->cluster == 4; }
/* Number of blocks of a cluster that each sum a share of k. */
static inline int tile_splits(const struct hopper_tile *tile) {
    return tile->schedule == SCHEDULE_CLUSTER_SPLIT ? 2 : 1;
}

/* Block scales of an operand. A block covers `outer` elements of its own index and `steps` steps of k; both are at most
   the full extent. */
struct block_scales {
    bool exists, is_negative;
    int value;
    weftDataType_t type;
    int64_t outer, steps;
    int64_t stride, step_stride, entry_stride; /* elements between consecutive blocks; per batch entry */
};

/* Filled in in this order: c and is_swapped by the analysis, the views by hopper_shape, scales by hopper_scales, and
   tile, splits, steps and seconds by hopper_plan. The fields from store to lines depend on the tile and are set in
   build. */
struct hopper {
    struct contraction c;
    bool is_swapped; /* A and B are swapped */
    struct map_view view[OPERANDS];
    const struct concat_op *parts[OPERANDS]; /* pieces along k in separate tensors, each with its own map; NULL: one
                                                piece */
    bool is_matrix;                          /* both operands are plain matrices */
    int entry_count;
    int64_t channels;                        /* elements of k per tap */
    int64_t taps[COORDINATES];               /* taps of k */
    struct positions positions[COORDINATES]; /* positions in the image, if there is one */
    bool promotes;                           /* tensor cores sum a single step, and steps are summed in float
                                                registers */
    bool is_flipped;                         /* taps traverse the filter backwards */
    bool is_planes;                          /* both operands are matrices of pixels per image, and images act as
                                                taps */
    bool k_is_pixels;                        /* filter gradient: k is pixels; or, if is_by_images, k is images and
                                                pixels are taps */
    bool is_by_images;
    struct block_scales scales[OPERANDS];
    const struct hopper_tile *tile;
    bool is_early[OPERANDS];               /* loads of its first slots do not wait for the previous kernel */
    bool stores_boxes;                     /* TMA stores the staged result, which is a matrix */
    const struct epilogue_operand *second; /* a second 16-bit result that is stored in the same way, or NULL */
    const struct epilogue_operand
        *store;                 /* in c.epilogue: the single result that is staged in shared memory, or NULL */
    int stages, epilogue_tiles; /* stages of the tile; number of epilogue tiles */
    bool has_aux_load;          /* an operand with the result's layout is copied into its epilogue tiles: */
    int auxiliary;              /* its number in c.epilogue */
    bool keeps_column;          /* a block keeps to one column of tiles and stores their partial sums once */
    int64_t lines[SPANS];       /* lines of partial sums in the workspace */
    int splits;
    int64_t steps, steps_per_split;
    double seconds;
};

/* ---- shape.c: from modes and geometry to views ---- */

/* Reorders the result's modes of a filter gradient so that they match the views. Call it between contraction_shape and
   the plan. */
void hopper_order(struct hopper *h);
/* Computes the views of a contraction that has a plan; NOT_SUPPORTED, with a reason, if TMA cannot load an operand. */
weftStatus_t hopper_shape(struct hopper *h);

/* Finds operands that consist of parts; NOT_SUPPORTED, with a reason, if another tensor does, or if parts do not end at
   steps of k. Call it after hopper_shape. */
weftStatus_t hopper_find_parts(struct hopper *h);
/* Returns the stride of a part in a dimension of its operand's map, except the first, in elements. */
int64_t hopper_part_stride(const struct hopper *h, int operand, int part, int dim);
/* True if a product can read a value in parts: it is concatenated along k. */
bool hopper_gathers(const struct graph *graph, int node, int value);

/* ---- scales.c: FP8 operands with block scales ---- */

static inline bool hopper_is_scaled(const struct hopper *h) {
    return h->scales[OPERAND_A].exists || h->scales[OPERAND_B].exists;
}
/* Computes the scales of a contraction that has its shape; NOT_SUPPORTED, with a reason, for blocks that do not match
   steps or maps. */
weftStatus_t hopper_scales(struct hopper *h);
/* Number of adjacent columns of a tile that have the same scale of B at each step. */
int hopper_scale_columns(const struct hopper *h, const struct hopper_tile *tile);
/* Emits a_scale_at(p, z, row, step): offset of the scale of a row at a step; a_scale_step(p, step): its distance from
   that of the previous step; a_scale(p, at): the scale; and the same functions for b. */
void hopper_emit_scales(struct kernel_source *source, const struct hopper *h);

/* ---- plan.c: tile and splits ---- */

enum {
    HOPPER_TILE_ROWS = 35,   /* rows of the tile table */
    HOPPER_SPLITS_MAX = 128, /* splits of k, each a separate block */
    HOPPER_PANEL = 64,       /* elements of an MN-major operand that are adjacent in shared memory */
};

/* Fills in the remaining fields; the tile is NULL if none fits. */
void hopper_plan(struct hopper *h, const struct device *device, const struct knob_choices *knobs);
/* Number of clusters, or of halves in a cluster split, that run concurrently. */
int64_t hopper_clusters(const struct hopper_tile *tile, const struct device *device);
/* Number of tiles of whole clusters, over the batch. */
int64_t hopper_tiles(const struct hopper *h, const struct hopper_tile *tile);
int64_t hopper_tiles_along(const struct hopper *h, enum index index);
/* Height of a rasterization group in rows of tiles; all groups have about the same height. It is chosen so that
   concurrent tiles span few rows and columns, whose operands stay in L2. It is 1 if blocks keep to their columns: in
   row-major order, a multiple of the tiles per row assigns the same column to each cluster again. */
int64_t hopper_raster_rows(const struct hopper *h, const struct device *device, int64_t tiles_m, int64_t tiles_n);
/* True if registers hold all epilogue operands of a narrow tile, loaded before the first product, in addition to its
   sums. Otherwise nothing would hide these loads, because no other tile's products overlap with them. */
bool hopper_reads_tile(const struct hopper *h);

/* True if registers hold the sums and, in addition, those of one step of a block of rows. */
bool hopper_can_promote(const struct hopper_tile *tile);
/* True if threads gather adjacent elements of a column that are contiguous in memory. */
bool hopper_gathers_rows(const struct hopper *h);
/* Predicted time of `units` tiles of a cluster, each with `steps` along k and `epilogue` instructions per element of
   the result, if moving all bytes takes `moving` seconds. */
double hopper_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                      double epilogue, double moving);

/* ---- hopper.c: parts of the kernel that other families use ---- */

/* Fails unless the chip has TMA and wgmma; the message names the family, such as "stem family". */
weftStatus_t hopper_check_device(const struct device *device, const char *family);

/* Sets the stages and epilogue tiles that fit in shared memory; whether results are staged must be known. */
void hopper_fit(struct hopper *h);
void hopper_emit_tile(struct kernel_source *source, const struct hopper *h);
/* Emits the numbering of tiles. */
void hopper_emit_scheduler(struct kernel_source *source, const struct hopper *h, const struct device *device,
                           int64_t batches, int64_t rows, int64_t columns);
/* Finishes the kernel: selects product/hopper/product_*_sm90.cuh by main loop and schedule. */
weftStatus_t hopper_build_kernel(struct kernel_source *source, struct cuda_kernel *kernel, const struct hopper *h,
                                 struct arena *arena);
/* Sets grid, block and shared memory for `tiles` tiles of whole clusters. */
void hopper_launch(struct cuda_kernel *kernel, const struct hopper *h, const struct device *device, int64_t tiles);

/* The single result, if epilogue tiles can hold it, or NULL. */
static inline const struct epilogue_operand *hopper_find_store(const struct hopper *h) {
    const struct epilogue_operand *store = NULL;
    for (int bytes = 1; bytes <= 4 && !store; bytes *= 2)
        store = epilogue_find_staged(&h->c, bytes);
    return store;
}

/* Bytes of an element of the result. */
static inline int hopper_result_bytes(const struct hopper *h) {
    return h->store ? (int)dtype_bytes(h->store->type, 1) : 2;
}
/* Columns of an epilogue tile. */
static inline int hopper_epilogue_columns(const struct hopper *h) {
    return epilogue_tile_columns(hopper_result_bytes(h), h->tile->columns);
}

/* ---- emit.c: code, maps and arguments ---- */

/* Emits tensor maps, the first fields of the arguments. */
void hopper_emit_maps(struct kernel_source *source, const struct hopper *h);
enum tensor_map_type hopper_map_type(weftDataType_t type);
void hopper_emit_operands(struct kernel_source *source, const struct hopper *h);
/* Emits the store of the single staged result; call it after epilogue(). */
void hopper_emit_result(struct kernel_source *source, const struct hopper *h);
/* Location of the first operand of a product: shared memory, K-major or MN-major, or registers. */
enum wgmma_a { WGMMA_A_K_MAJOR, WGMMA_A_MN_MAJOR, WGMMA_A_REGISTERS };
/* Emits the wgmma instruction of a tile's width: multiply_accumulate(c, a, b, adds). sum_t is i32 for integers,
   otherwise float. */
void wgmma_emit(struct text *code, int columns, weftDataType_t a, weftDataType_t b, enum wgmma_a from,
                bool b_is_mn_major);
/* Emits pair_of(results), which product/hopper/epilogue_staged.cuh calls for the single result. */
void epilogue_emit_pairs(struct kernel_source *source, const struct contraction *c,
                         const struct epilogue_operand *store);

#endif
