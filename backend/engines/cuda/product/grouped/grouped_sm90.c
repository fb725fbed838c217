/* SPDX-License-Identifier: Apache-2.0 */
/* The grouped family of Hopper: the products of a mixture of experts with TMA and wgmma.
   product/hopper/product_sm90.cuh computes the tiles; product/grouped/grouped_sm90.cuh defines the addresses of
   operands and result. The portable family is the fallback. */
#include "base/number.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/grouped/grouped.h"
#include "engines/cuda/product/hopper/hopper.h"

enum {
    MAP_ALIGNMENT = 16, /* bytes: required by TMA for addresses and strides */
    TILES = 8,          /* rows of the table below */
    RUN_MAX = 8,        /* contiguous results per thread */
};

/* As in the Hopper family, with its efficiencies; the small tiles are for experts with few rows. */
static const struct hopper_tile tiles[TILES] = {
    /* 1 */ {.rows = 128, .columns = 256, .row_blocks = 1, .stages = 4, .cluster = 1, .efficiency = 0.94},
    /* 2 */ {.rows = 128, .columns = 256, .row_blocks = 1, .stages = 4, .cluster = 2, .efficiency = 0.90},
    /* 3 */ {.rows = 256, .columns = 128, .row_blocks = 2, .stages = 4, .cluster = 1, .efficiency = 0.91},
    /* 4 */ {.rows = 128, .columns = 128, .row_blocks = 1, .stages = 6, .cluster = 1, .efficiency = 0.94},
    /* 5 */ {.rows = 256, .columns = 192, .row_blocks = 2, .stages = 3, .cluster = 2, .efficiency = 0.96},
    /* 6 */ {.rows = 64, .columns = 256, .row_blocks = 1, .stages = 5, .cluster = 1, .efficiency = 0.85},
    /* 7 */ {.rows = 64, .columns = 128, .row_blocks = 1, .stages = 8, .cluster = 1, .efficiency = 0.80},
    /*  8 */
    {.rows = 128,
     .columns = 128,
     .row_blocks = 2,
     .stages = 6,
     .cluster = 1,
     .efficiency = 0.96,
     .schedule = SCHEDULE_PINGPONG},
};

/* Time of the kernel that lists tiles, measured on an H200. */
static const double LIST_SECONDS = 2e-6;

/* A tensor as the operand of a product: its two dims other than the batch entry. */
struct side {
    const struct tensor *tensor;
    int inner, outer; /* dims; the inner one is contiguous */
    bool is_k_major;  /* k is the inner one */
    bool is_ragged;   /* the outer one is the rows that experts share */
};

/* `g` describes what is multiplied, `h` how; only those fields of `h` are set that tiles, launch and code generation
   read. */
struct product {
    struct grouped g;
    struct hopper h; /* tile, stages and epilogue tiles */
    struct side a, b, y;
    /* is_staged: results are stored through epilogue tiles in shared memory. */
    bool is_fp8, is_staged;
    double seconds;
};

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

/* Type pairs that wgmma supports; FP8 only forward, because weight gradients sum along rows, which are not K-major. */
static weftStatus_t check_types(struct product *p) {
    const struct grouped *g = &p->g;
    weftDataType_t a = (weftDataType_t)g->c.operand[OPERAND_A].tensor->type;
    weftDataType_t b = (weftDataType_t)g->c.operand[OPERAND_B].tensor->type;
    bool is_half = a == b && dtype_is_half(a);
    p->is_fp8 = dtype_is_fp8(a) && dtype_is_fp8(b) && g->forward;
    /* Tensor cores accumulate FP8 with few bits, so float registers sum the steps, unless the fast type is
       requested. */
    p->h.promotes = p->is_fp8 && contraction_math(g->c.node) != WEFT_DATA_FAST_FLOAT_FOR_FP8;
    if ((!is_half && !p->is_fp8) || (g->c.arithmetic != MMA_F16 && g->c.arithmetic != MMA_BF16))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: unsupported operand types: %s x %s; this engine multiplies two halves or two bfloat16 summed in "
             "float and, "
             "forward, FP8.",
             descriptor_label(g->c.node->op), dtype_of(a)->name, dtype_of(b)->name);
    /* Coordinates have 32 bits; the last tiles extend past the extent. */
    const int64_t most = INT32_MAX - 512;
    if (g->group_rows == 0 || g->k_count == 0 || g->group_rows > most || g->columns > most || g->k_count > most)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: empty, or larger than 2^31 along an index; use the portable family.",
             descriptor_label(g->c.node->op));
    return WEFT_STATUS_SUCCESS;
}

/* Requirements of a tensor map: one dimension of stride 1, the others at multiples of 16 bytes. A dimension of extent 1
   may have any stride. */
static weftStatus_t check_side(const struct product *p, const struct side *side) {
    const struct tensor *t = side->tensor;
    int64_t bytes = dtype_bytes((weftDataType_t)t->type, 1);
    bool fits = t->alignment % MAP_ALIGNMENT == 0 && !t->is_by_value && !t->is_constant;
    for (int i = 0; i < 3; i++)
        fits = fits && (i == side->inner ? t->strides.at[i] == 1 || t->dims.at[i] == 1
                                         : t->dims.at[i] == 1 ||
                                               (t->strides.at[i] > 0 && t->strides.at[i] * bytes % MAP_ALIGNMENT == 0));
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s must have one contiguous dimension, which is not the rows that experts share if these are "
             "summed, and be aligned to %d bytes along the others.",
             descriptor_label(p->g.c.node->op), descriptor_label(&t->base), MAP_ALIGNMENT);
    return WEFT_STATUS_SUCCESS;
}

/* Chooses the contiguous one of two dimensions as the inner one. */
static struct side side_of(const struct tensor *tensor, int outer, int k) {
    bool is_k_major = tensor->strides.at[k] == 1 && tensor->dims.at[k] > 1;
    return (struct side){tensor, is_k_major ? k : outer, is_k_major ? outer : k, is_k_major, false};
}

/* Elements of 128 bytes. */
static int step_elements(const struct product *p) { return p->is_fp8 ? 128 : 64; }

/* Tensor cores read FP8 only along k. */
static weftStatus_t check_fp8(const struct product *p) {
    if (p->is_fp8 && (!p->a.is_k_major || !p->b.is_k_major))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: FP8 requires tokens and weights that are contiguous along "
             "the summed dimension.",
             descriptor_label(p->g.c.node->op));
    return WEFT_STATUS_SUCCESS;
}

/* Dims of the maps. Forward, the inner dims of A and B are the contiguous ones; in the gradient both are MN-major,
   because rows of experts are k. */
static void find_sides(struct product *p) {
    struct grouped *g = &p->g;
    const struct tensor *a = g->c.operand[OPERAND_A].tensor, *b = g->c.operand[OPERAND_B].tensor;
    if (g->forward) {
        p->a = side_of(a, 1, 2);
        p->b = side_of(b, 2, 1);
        p->y = (struct side){g->y, 2, 1, false, true};
        return;
    }
    /* The columns of the product should be contiguous in the gradient. */
    bool is_swapped = g->lead_is_row;
    p->a = (struct side){is_swapped ? b : a, 2, 1, false, true};
    p->b = (struct side){is_swapped ? a : b, 2, 1, false, true};
    p->y = (struct side){g->y, is_swapped ? 1 : 2, is_swapped ? 2 : 1, false, false};
    g->rows = g->y->dims.at[p->y.outer];
    g->columns = g->y->dims.at[p->y.inner];
}

/* TMA loads only contiguous boxes, so gathered rows are copied first. Their map need not be ragged: it has one stride
   between rows. */
static weftStatus_t plan_copies(struct product *p) {
    struct grouped *g = &p->g;
    int64_t bytes = g->k_count * dtype_bytes((weftDataType_t)p->a.tensor->type, 1);
    if (!g->forward || g->forward->mode != WEFT_MOE_GROUPED_MATMUL_MODE_GATHER)
        return WEFT_STATUS_SUCCESS;
    if (p->a.inner != 2 || bytes % MAP_ALIGNMENT != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: rows are gathered only if they are contiguous and whole multiples of 16 bytes.",
             descriptor_label(g->c.node->op));
    g->copies = g->group_rows * bytes;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Tile -------------------------------------------------------------------------------------------------------- */

/* Rows of the tiles that a cluster computes, stacked. */
static int64_t height_of(const struct hopper_tile *tile) { return (int64_t)tile->rows * tile->cluster; }

static int64_t tiles_along(int64_t extent, int64_t block) { return divide_up(extent, block); }

/* Assumes that all experts have about the same number of rows; the last tile of each is half full. */
static double predict(const struct product *p, const struct device *device, const struct hopper_tile *tile) {
    const struct grouped *g = &p->g;
    double bytes = 2 * (double)g->copies, rows = (double)g->group_rows / (double)(g->experts ? g->experts : 1);
    /* Gathered rows are read and written once more, which was counted above. */
    for (int k = 0; k < g->c.node->operand_count; k++)
        bytes += (double)tensor_bytes(g->c.region->graph->values[g->c.node->operands[k]].tensor);
    /* Tiles over all experts, and steps of k per tile. */
    double units = (double)g->experts * (double)tiles_along(g->columns, tile->columns), steps;
    if (g->forward) {
        units *= rows / (double)height_of(tile) + 0.5;
        steps = (double)tiles_along(g->k_count, step_elements(p));
    } else {
        units *= (double)tiles_along(g->rows, height_of(tile));
        steps = rows / step_elements(p) + 0.5;
    }
    return (g->forward ? LIST_SECONDS : 0) +
           hopper_seconds(tile, device, units, steps, 0, bytes / (double)device->cuda.bandwidth);
}

/* True if the tile's kernel can be built. */
static bool fits(const struct product *p, const struct hopper_tile *tile) {
    /* More than 128 accumulators per thread leave no registers for direct stores: results must be staged. */
    bool is_deep = tile->row_blocks * tile->columns > 256;
    if (p->h.promotes && !hopper_can_promote(tile))
        return false;
    /* An MN-major B consists of panels of step_elements columns, and each block of a cluster loads whole ones. */
    return (p->b.is_k_major || tile->columns % (step_elements(p) * tile->cluster) == 0) && (!is_deep || p->is_staged);
}

/* Minimizes the predicted time; `knobs`, which may be NULL, can select the row of the table, counted from 1. */
static weftStatus_t choose_tile(struct product *p, const struct device *device, const struct knob_choices *knobs) {
    int64_t chosen = knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE);
    chosen = chosen <= TILES ? chosen : 0; /* row of another family's table */
    for (int t = 0; t < TILES; t++) {
        double seconds = predict(p, device, &tiles[t]);
        if (!fits(p, &tiles[t]) || tiles[t].cluster > device->cuda.cluster_most || (chosen > 0 && chosen != t + 1) ||
            (p->h.tile && seconds >= p->seconds))
            continue;
        p->h.tile = &tiles[t];
        p->seconds = seconds;
    }
    if (!p->h.tile)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: the requested tile does not fit.",
             descriptor_label(p->g.c.node->op));
    if (p->g.forward)
        grouped_set_rows(&p->g, height_of(p->h.tile));
    return WEFT_STATUS_SUCCESS;
}

/* Sets everything except stages, which depend on how results are stored and are chosen in build. */
static weftStatus_t analyse(struct product *p, const struct region *region, const struct device *device,
                            const struct knob_choices *knobs) {
    *p = (struct product){0};
    TRY(hopper_check_device(device, "grouped family of Hopper"));
    TRY(grouped_find(&p->g, region, device));
    TRY(check_types(p));
    find_sides(p);
    TRY(check_fp8(p));
    TRY(check_side(p, &p->a));
    TRY(check_side(p, &p->b));
    TRY(check_side(p, &p->y));
    TRY(plan_copies(p));
    /* Epilogue tiles have 16-bit elements, in rows of whole 16-byte accesses. */
    p->is_staged = dtype_bytes((weftDataType_t)p->g.y->type, 1) == 2 && p->g.columns % 8 == 0;
    return choose_tile(p, device, knobs);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct product p;
    TRY(analyse(&p, region, device, NULL));
    offer->seconds = p.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* Distance in bytes between consecutive indices of a dimension; a dimension of extent 1 gets any stride that a map
   accepts. */
static uint64_t map_stride(const struct tensor *tensor, int dim) {
    return tensor->dims.at[dim] == 1
               ? MAP_ALIGNMENT
               : (uint64_t)(tensor->strides.at[dim] * dtype_bytes((weftDataType_t)tensor->type, 1));
}

/* The map of a side, with boxes of inner x outer elements. Ragged rows use the layout of
   product/grouped/grouped_sm90.cuh: they are counted twice with one stride, so that coordinate z moves the end of an
   expert to the position after which reads return zeros and writes are dropped. */
static struct cuda_map map_of(const struct product *p, const struct side *side, uint32_t inner, uint32_t outer) {
    const struct tensor *t = side->tensor;
    struct cuda_map map = {.form = {.type = hopper_map_type((weftDataType_t)t->type),
                                    .rank = side->is_ragged || t->dims.at[0] > 1 || side == &p->b ? 3 : 2,
                                    .dims = {(uint64_t)t->dims.at[side->inner], (uint64_t)t->dims.at[side->outer],
                                             (uint64_t)t->dims.at[0]},
                                    .strides = {map_stride(t, side->outer), map_stride(t, 0)},
                                    .box = {inner, outer, 1},
                                    .swizzle = TENSOR_MAP_128B,
                                    .promotion = TENSOR_MAP_L2_128B}};
    /* z ranges from 0 to group_rows, both included; the map starts group_rows rows before the tensor. */
    if (side->is_ragged) {
        map.form.strides[1] = map.form.strides[0];
        map.form.dims[2] = map.form.dims[1] + 1;
        map.offset = -(int64_t)(map.form.dims[1] * map.form.strides[0]);
    }
    return map;
}

static void emit_map_of(struct kernel_source *source, const struct tensor *tensor, const struct cuda_map *map,
                        const char *name) {
    emit_map(source, graph_find_value(source->graph, tensor), map, name);
}

/* Emits a_map, b_map and, if TMA stores results, c_map. */
static void emit_maps(struct kernel_source *source, const struct product *p) {
    const struct hopper_tile *tile = p->h.tile;
    /* Columns of an epilogue tile; its rows are 128 or 64 bytes, like its swizzle. */
    int width = tile->columns % 64 == 0 ? 64 : 32;
    const uint32_t row = (uint32_t)step_elements(p);
    struct cuda_map a = map_of(p, &p->a, row, p->a.is_k_major ? (uint32_t)tile->rows : row);
    /* Each block of a cluster loads a share of B and multicasts it. */
    struct cuda_map b = map_of(p, &p->b, row, p->b.is_k_major ? (uint32_t)(tile->columns / tile->cluster) : row);
    if (p->g.copies) { /* the copies follow the list in the workspace */
        a.form.dims[1] = (uint64_t)p->g.group_rows;
        a.form.strides[0] = (uint64_t)(p->g.copies / p->g.group_rows);
        a.offset = grouped_list_bytes(&p->g);
        emit_map(source, -1, &a, "a_map");
    } else {
        emit_map_of(source, p->a.tensor, &a, "a_map");
    }
    emit_map_of(source, p->b.tensor, &b, "b_map");
    if (p->h.stores_boxes) {
        /* A warp stores 16 rows at a time. */
        struct cuda_map y = map_of(p, &p->y, (uint32_t)width, 16);
        y.form.rank = 3;
        y.form.swizzle = width == 64 ? TENSOR_MAP_128B : TENSOR_MAP_64B;
        emit_map_of(source, p->y.tensor, &y, "c_map");
    }
}

static void emit_sides(struct kernel_source *source, const struct product *p) {
    const struct side *sides[] = {&p->a, &p->b};
    for (int f = 0; f < OPERANDS; f++)
        emit_constant(source, named("%c_IS_MN_MAJOR", "AB"[f]).text, !sides[f]->is_k_major);
}

/* Parameters of product/hopper/product_sm90.cuh. HAS_PHASES: the length of k differs between tiles; HAS_GROUPS: rows
   end at the end of the expert. */
static void emit_structure(struct kernel_source *source, const struct product *p) {
    static const char *const none[] = {"LEAD_IS_ROW", "K_IS_PIXELS", "HAS_TAPS", "IS_SPLIT"};
    text_add(&source->constants, "using sum_t = float;\nusing index = i32;\n");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        emit_constant(source, none[i], 0);
    emit_constant(source, "HAS_PHASES", 1);
    emit_constant(source, "HAS_GROUPS", 1);
    emit_constant(source, "HAS_OVERRIDES", 0);
    emit_constant(source, "STORED_BYTES", HOPPER_K_BYTES / step_elements(p));
    emit_constant(source, "FORWARD", p->g.forward != NULL);
    int run = grouped_run_along(p->g.y, p->y.inner);
    /* Staged results are stored in pairs, the layout of the accumulators. */
    emit_constant(source, "RUN", p->is_staged ? 2 : run < RUN_MAX ? run : RUN_MAX);
    hopper_emit_tile(source, &p->h);
    emit_sides(source, p);
}

/* Forward, rows of all experts are one column of tiles, according to the list; in the gradient each expert is a batch
   entry. */
static weftStatus_t build_product(struct cuda_kernel *kernel, const struct product *p, const struct device *device,
                                  struct arena *arena) {
    struct kernel_source source;
    const struct grouped *g = &p->g;
    const struct hopper_tile *tile = p->h.tile;
    kernel_source_init(&source, g->c.region);
    emit_structure(&source, p);
    emit_maps(&source, p);
    grouped_emit(&source, g);
    emit_number(&source, g->y->strides.at[p->y.outer], "y_line");
    emit_number(&source, p->h.steps, "steps_per_split");
    int64_t entries = g->forward ? 1 : g->experts, rows = g->forward ? g->max_entries * height_of(tile) : g->rows;
    hopper_emit_scheduler(&source, &p->h, device, entries, rows, g->columns);
    text_add(&source.code, "#include \"core/gather.cuh\"\n#include \"product/hopper/coordinates.cuh\"\n#include "
                           "\"product/grouped/grouped_sm90.cuh\"\n\n");
    wgmma_emit(&source.code, tile->columns, (weftDataType_t)p->a.tensor->type, (weftDataType_t)p->b.tensor->type,
               p->a.is_k_major ? WGMMA_A_K_MAJOR : WGMMA_A_MN_MAJOR, !p->b.is_k_major);
    TRY(hopper_build_kernel(&source, kernel, &p->h, arena));
    hopper_launch(kernel, &p->h, device,
                  entries * tiles_along(rows, height_of(tile)) * tiles_along(g->columns, tile->columns));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    /* A placeholder for the result, of which hopper_fit only reads the width. */
    static const struct epilogue_operand staged = {.type = WEFT_DATA_HALF}; /* 16 bits */
    struct product p;
    struct cuda_step *state;
    TRY(analyse(&p, &step->region, device, knobs));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    step->seconds = p.seconds;
    if (tensor_elements(p.g.y) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    p.h.splits = 1;
    p.h.steps = tiles_along(p.g.k_count, step_elements(&p));
    p.h.store = p.is_staged ? &staged : NULL;
    /* Scattered rows have arbitrary addresses, so threads store them individually. */
    p.h.stores_boxes = p.is_staged && !(p.g.forward && p.g.forward->mode == WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER);
    hopper_fit(&p.h);
    /* The workspace holds the list, followed by the gathered rows. */
    if (p.g.forward) {
        TRY(grouped_build_list(&state->kernels[state->count++], &p.g, arena));
        step->workspace_bytes = grouped_list_bytes(&p.g) + round_up(p.g.copies, 64);
    }
    TRY(build_product(&state->kernels[state->count++], &p, device, arena));
    return arena_print(arena, &step->detail, "wgmma, tiles of %dx%d%s, %d stages, clusters of %d, %lld expert%s%s%s",
                       p.h.tile->rows, p.h.tile->columns, tile_is_pingpong(p.h.tile) ? " in ping-pong" : "", p.h.stages,
                       p.h.tile->cluster, (long long)p.g.experts, plural(p.g.experts), p.is_staged ? ", staged" : "",
                       p.g.copies ? ", rows gathered first" : "");
}

static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, TILES, 1, 0, "row of the tile table; 0 chooses"},
    {0},
};

const struct family cuda_grouped_sm90 = {
    .name = "cuda.grouped_sm90",
    .doc = "products of a mixture of experts, and their weight gradients, on Hopper's tensor cores",
    .knobs = knobs,
    .accepts = accepts,
    .build = build,
};
