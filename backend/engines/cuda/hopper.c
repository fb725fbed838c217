/* SPDX-License-Identifier: Apache-2.0 */
/* The Hopper family: one matmul or convolution of 16-bit factors and the
   pointwise operations behind it, through the copy engine and wgmma. The host
   half decides and prints; kernels/hopper.cuh makes tiles of the product, and
   kernels/combine.cuh brings the parts of split sums together. What it
   declines, the contraction family takes. */
#include "engines/cuda/hopper.h"
#include "engines/cuda/families.h"
#include "graph/ops/matmul.h"

enum {
    WARPGROUP = 128,
    GROUP_TILES = 8,    /* rows of tiles that are walked together, so that their
                         factors meet in L2 */
    BARRIER_BYTES = 16, /* of a slot */
    SKINNY_COLUMNS = 128,
};

/* ---- Accepting
 * ----------------------------------------------------------------------------------------------------
 */

static weftStatus_t check_arithmetic(const struct contraction *c) {
    weftDataType_t a = (weftDataType_t)c->factor[FACTOR_A].tensor->type;
    weftDataType_t b = (weftDataType_t)c->factor[FACTOR_B].tensor->type;
    bool is_half = (a == WEFT_DATA_HALF || a == WEFT_DATA_BFLOAT16) && a == b;
    if (!is_half || (c->arithmetic != MMA_F16 && c->arithmetic != MMA_BF16))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: products of %s and %s are not multiplied here; two halves or two "
             "bfloat16 summed in float are.",
             descriptor_label(c->node->op), dtype_of(a)->name, dtype_of(b)->name);
    if (c->is_direct || !c->is_small || digits_extent(&c->digits[DEPTH]) == 0 || c->used[0] || c->used[1] || c->used[2])
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: empty, tiny, larger than 2^31 along an index, or with overrides: "
             "the contraction family takes it.",
             descriptor_label(c->node->op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse_turned(struct hopper *h, const struct region *region, const struct device *device,
                                   const struct knob_choices *knobs, bool is_turned) {
    *h = (struct hopper){.is_turned = is_turned};
    TRY(contraction_find(&h->c, region));
    if (is_turned)
        contraction_turn(&h->c);
    TRY(contraction_plan(&h->c, device, NULL));
    TRY(check_arithmetic(&h->c));
    TRY(hopper_shape(h));
    hopper_plan(h, device, knobs);
    if (!h->tile)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: no tile of the Hopper family fits it.",
             descriptor_label(h->c.node->op));
    return WEFT_STATUS_SUCCESS;
}

/* The product as it stands or turned: few rows are the columns of a turned
 * product, whose tiles may be narrow. */
static weftStatus_t analyse(struct hopper *h, const struct region *region, const struct device *device,
                            const struct knob_choices *knobs) {
    if (device->cuda.major != 9 || device->cuda.minor != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
             "the Hopper family runs on compute capability 9.0, '%s' has %d.%d", device->name, device->cuda.major,
             device->cuda.minor);
    TRY(analyse_turned(h, region, device, knobs, false));
    bool lead_is_row = h->c.finish.lead == ROW, is_skinny = digits_extent(&h->c.digits[ROW]) <= SKINNY_COLUMNS;
    if (!lead_is_row && !is_skinny)
        return WEFT_STATUS_SUCCESS;
    struct hopper turned;
    weftStatus_t status = analyse_turned(&turned, region, device, knobs, true);
    if (!status && turned.seconds < h->seconds)
        *h = turned;
    if (status)
        status_clear();
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct hopper h;
    TRY(analyse(&h, region, device, NULL));
    *seconds = h.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building
 * -----------------------------------------------------------------------------------------------------
 */

static int math_groups(const struct hopper *h) { return h->tile->rows / (h->tile->row_blocks * 64); }

static void print_tile(struct kernel_print *print, const struct hopper *h) {
    const struct hopper_tile *tile = h->tile;
    bool is_wide = math_groups(h) > 2, is_deep = tile->row_blocks * tile->columns > 256;
    print_constant(print, "BLOCK_M", tile->rows);
    print_constant(print, "BLOCK_N", tile->columns);
    print_constant(print, "ROW_BLOCKS", tile->row_blocks);
    print_constant(print, "STAGES", tile->stages);
    print_constant(print, "CLUSTER", tile->cluster);
    print_constant(print, "GROUP_TILES", GROUP_TILES);
    print_constant(print, "LOADER_REGISTERS", is_wide ? 32 : is_deep ? 40 : 56);
    print_constant(print, "MATH_REGISTERS", is_wide ? 160 : is_deep ? 232 : 224);
}

static void print_walk(struct kernel_print *print, const struct hopper *h) {
    const struct hopper_tile *tile = h->tile;
    int64_t height = (int64_t)tile->rows * tile->cluster, rows = digits_extent(&h->c.digits[ROW]);
    int64_t columns = digits_extent(&h->c.digits[COLUMN]);
    int64_t tiles_m = (rows + height - 1) / height, tiles_n = (columns + tile->columns - 1) / tile->columns;
    print_number(print, rows, "rows");
    print_number(print, columns, "columns");
    print_number(print, h->steps, "steps");
    print_number(print, tiles_m, "tiles_m");
    print_number(print, hopper_tiles(h, tile) * h->splits, "tiles");
    print_divisor(print, tiles_m * tiles_n, "tiles_per_entry");
    print_divisor(print, GROUP_TILES * tiles_n, "tiles_per_band");
    print_divisor(print, digits_extent(&h->c.digits[BATCH]), "batches");
}

static weftStatus_t build_tiles(struct cuda_kernel *kernel, const struct hopper *h, const struct device *device,
                                struct arena *arena) {
    const struct hopper_tile *tile = h->tile;
    struct kernel_print print;
    struct contraction c = h->c;
    int64_t clusters = device->cuda.multiprocessors / tile->cluster, tiles = hopper_tiles(h, tile) * h->splits;
    if (c.finish.lead == ROW) /* neighbours of a column are in other threads */
        c.finish.run = 1;
    contraction_print_common(&print, &c);
    print_tile(&print, h);
    hopper_print_factors(&print, h);
    hopper_print_product(&print, h);
    print_walk(&print, h);
    contraction_print_end(&print, &c);
    TRY(kernel_finish(&print, kernel, "hopper.cuh", "hopper", arena));
    kernel->grid[0] = (uint32_t)((tiles < clusters ? tiles : clusters) * tile->cluster);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)(1 + math_groups(h)) * WARPGROUP;
    kernel->cluster = tile->cluster > 1 ? (uint32_t)tile->cluster : 0;
    kernel->is_dependent = true;
    kernel->shared_bytes =
        (uint32_t)(tile->stages * ((tile->rows + tile->columns) * HOPPER_DEPTH_BYTES + BARRIER_BYTES));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t describe(struct step *step, const struct hopper *h, struct arena *arena) {
    const struct hopper_tile *tile = h->tile;
    bool has_image = h->view[FACTOR_A].is_image || h->view[FACTOR_B].is_image;
    return arena_print(arena, &step->detail,
                       "wgmma, tiles of %dx%d%s, %d stages, clusters of %d, %d splits, %s%s, %d "
                       "operations behind",
                       tile->rows, tile->columns, h->is_turned ? " turned" : "", tile->stages, tile->cluster, h->splits,
                       has_image ? "image" : "matrix", h->depth_is_pixels ? " of pixels" : "", h->c.region->count - 1);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct hopper h;
    struct cuda_step *state;
    TRY(analyse(&h, &step->region, device, knobs));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    int64_t elements = contraction_elements(&h.c);
    if (elements == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    TRY(build_tiles(&state->kernels[state->count++], &h, device, arena));
    if (h.splits > 1) {
        TRY(contraction_build_combine(&state->kernels[state->count++], &h.c, arena));
        step->workspace_bytes = (elements * h.splits * (int64_t)sizeof(float) + 63) / 64 * 64;
    }
    return describe(step, &h, arena);
}

static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, HOPPER_TILE_ROWS, 1, 0, "row of the tile table; 0 chooses"},
    {WEFT_KNOB_TYPE_SPLIT_K, 0, HOPPER_SPLITS_MAX, 1, 0, "parts that each sum is split into; 0 chooses"},
    {0},
};

const struct family cuda_hopper = {
    .name = "cuda.hopper",
    .doc = "a matmul or convolution of 16-bit factors and the pointwise "
           "operations behind it, on Hopper's tensor cores",
    .knobs = knobs,
    .accepts = accepts,
    .build = build,
    .load = cuda_load,
    .run = cuda_run,
    .may_alias = contraction_may_alias,
    .release = cuda_release,
};
