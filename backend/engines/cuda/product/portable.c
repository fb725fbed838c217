/* SPDX-License-Identifier: Apache-2.0 */
/* The contraction family: one matmul or convolution and the pointwise operations after it, in one kernel, or in two if
   the sum is split. The host code chooses and generates; product/portable_mma.cuh and portable_fma.cuh compute tiles of
   the product, product/portable_direct.cuh single elements of small ones, and product/combine_splits.cuh adds the
   partial sums of split-K. */
#include "base/number.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/contraction.h"

enum { DIRECT_THREADS = 128 };

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

static weftStatus_t analyse(struct contraction *c, const struct region *region, const struct device *device,
                            const struct knob_choices *knobs, int used) {
    TRY(contraction_find(c, region));
    c->narrows = used & RELAX_TF32;
    TRY(contraction_plan(c, device, knobs));
    if (c->narrows && c->arithmetic != MMA_TF32)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: only tiles of floats summed in float are narrowed to tf32, from compute capability 8.0 on.",
             descriptor_label(c->node->op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t price(const struct region *region, const struct device *device, int used, double *seconds) {
    struct contraction c;
    TRY(analyse(&c, region, device, NULL, used));
    *seconds = c.seconds;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    return offer_relaxed(offer, region, device, RELAX_TF32, price);
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* One kernel for mma and fma. The differences are in the constants: tile, operands, epilogue or workspace. */
static weftStatus_t build_tiles(struct cuda_kernel *kernel, const struct contraction *c, struct arena *arena) {
    const struct tile *tile = c->tile;
    struct kernel_source source;
    /* Number of tiles along rows and columns, and of batch entries. */
    const int64_t tiles[] = {divide_up(modes_extent(&c->modes[ROW]), tile->rows),
                             divide_up(modes_extent(&c->modes[COLUMN]), tile->columns), modes_extent(&c->modes[BATCH])};
    contraction_emit_tile(&source, c);
    contraction_emit_operands(&source, c);
    contraction_emit_epilogue(&source, c);
    return contraction_end_tiles(&source, kernel, c, tiles, arena);
}

/* Builds the kernel for few products per result: each thread computes a run of results, and grid y splits k. */
static weftStatus_t build_direct(struct cuda_kernel *kernel, const struct contraction *c, struct arena *arena) {
    struct kernel_source source;
    int64_t runs = contraction_elements(c) / c->epilogue.run;
    contraction_emit_begin(&source, c);
    emit_constant(&source, "THREADS", DIRECT_THREADS);
    contraction_emit_operands(&source, c);
    contraction_emit_epilogue(&source, c);
    emit_number(&source, runs, "runs");
    TRY(kernel_finish(&source, kernel, "product/portable_direct.cuh", "portable_direct", arena));
    kernel->grid[0] = contraction_grid(divide_up(runs, DIRECT_THREADS));
    kernel->grid[1] = (uint32_t)c->splits; /* at most SPLITS_MAX */
    kernel->grid[2] = 1;
    kernel->block = DIRECT_THREADS;
    return WEFT_STATUS_SUCCESS;
}

/* Writes the text for explain(). */
static weftStatus_t describe(struct step *step, const struct contraction *c, struct arena *arena) {
    static const char *const names[] = {[MMA_F16] = "f16 tensor cores",
                                        [MMA_BF16] = "bf16 tensor cores",
                                        [MMA_INT8] = "int8 tensor cores",
                                        [MMA_TF32] = "tf32 tensor cores",
                                        [FMA_FLOAT] = "f32",
                                        [FMA_DOUBLE] = "f64",
                                        [FMA_INT32] = "i32",
                                        [FMA_INT64] = "i64"};
    if (c->is_direct)
        return arena_print(arena, &step->detail, "%s, one thread per %d results, %d split%s, epilogue: %d operation%s",
                           names[c->arithmetic], c->epilogue.run, c->splits, plural(c->splits), c->region->count - 1,
                           plural(c->region->count - 1));
    return arena_print(arena, &step->detail, "%s, tiles of %dx%dx%d, %d split%s, epilogue: %d operation%s",
                       names[c->arithmetic], c->tile->rows, c->tile->columns, arithmetic_rows[c->arithmetic].block_k,
                       c->splits, plural(c->splits), c->region->count - 1, plural(c->region->count - 1));
}

/* One kernel, and a second one that adds the partial sums if k is split. */
static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct contraction c;
    struct cuda_kernel *kernel;
    TRY(analyse(&c, &step->region, device, knobs, step->used));
    step->seconds = c.seconds;
    TRY(contraction_add_kernel(&kernel, step, &c, arena));
    if (!kernel)
        return WEFT_STATUS_SUCCESS;
    TRY(c.is_direct ? build_direct(kernel, &c, arena) : build_tiles(kernel, &c, arena));
    if (c.splits > 1)
        TRY(contraction_add_combine(step, &c, arena));
    return describe(step, &c, arena);
}

/* The numbers of tiles are those of the tables in plan.c. */
static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, TILE_ROWS, 1, 0,
     "rows x columns of a tile: 1 128x128, 2 128x64, 3 64x128, 4 64x64, 5 128x32, 6 32x128, 7 32x32; 0 chooses"},
    {WEFT_KNOB_TYPE_SPLIT_K, 0, SPLITS_MAX, 1, 0, "parts that each sum is split into; 0 chooses"},
    {0},
};

const struct family cuda_contraction = {
    .name = "cuda.contraction",
    .doc = "a matmul or convolution and the pointwise operations after it",
    .knobs = knobs,
    .accepts = accepts,
    .build = build,
    .may_alias = contraction_may_alias,
    .relaxes = contraction_relaxes,
};
