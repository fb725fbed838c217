/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of small 16-bit matrix products whose matrices are contiguous, several matrices per block. Tiles of the other
   families are mostly empty for such matrices, and their loads start at each matrix again. The kernel is
   product/batched/batched.cuh. */
#include "engines/cuda/product/batched/batched_geometry.h"
#include "base/number.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/contraction.h"
#include "graph/ops/matmul.h"

enum {
    WARPS_MAX = 8,
    SIDE_MAX = 256,              /* rows and columns */
    UNIT_SUMS_MAX = 16,          /* fragments of 16 x 8 sums of a warp, 4 registers each */
    SHARERS_MAX = 8,             /* warps that share the k of a unit */
    MATRICES_MAX = 32,           /* in a block */
    BLOCK_BYTES_MAX = 112 << 10, /* bytes of a block, so that two fit on a multiprocessor */
    IN_FLIGHT = 16,              /* registers of 16 bytes that a thread loads before it uses the first */
};

/* One operand: its own extent, elements of a matrix, and how it is read. */
struct factor {
    int64_t outers, elements, staged; /* elements of shared memory per matrix; 0: read directly */
    bool is_k_major;
    int access;
};

struct batched {
    struct contraction c; /* with the epilogue of a result that is numbered by the batch only */
    struct factor factors[OPERANDS];
    int64_t matrices, rows, columns, ks;
    bool rows_first; /* a row of the result is contiguous, not a column */
    int unit_m, unit_n, units_m, units_n, sharers, per_block, threads, unroll;
    int64_t b_at, partial_at, results_at, shared_bytes;
};

static bool is_plain(const struct batched *b) {
    return b->c.region->count == 1 && b->c.alpha == 1 && b->c.beta == 0 &&
           (weftDataType_t)b->c.region->graph->values[b->c.result].tensor->type == operand_type(&b->c, OPERAND_A);
}

/* ---- Shape ------------------------------------------------------------------------------------------------------- */

/* True if a matrix is contiguous, each follows the previous one, and the first is aligned. */
static bool find_factor(struct factor *factor, const struct contraction *c, int f, int64_t batch_stride) {
    const struct mode *outer = &c->modes[f == OPERAND_A ? ROW : COLUMN].at[0], *k = &c->modes[K].at[0];
    int64_t outer_stride = outer->stride[f], k_stride = k->stride[f];
    factor->outers = outer->extent;
    factor->elements = outer->extent * k->extent;
    factor->is_k_major = k_stride == 1 && outer_stride == k->extent;
    bool is_whole = factor->is_k_major || (outer_stride == 1 && k_stride == outer->extent);
    bool has_runs = (factor->is_k_major ? k->extent : outer->extent) % 8 == 0;
    factor->access = !has_runs ? BATCHED_WHOLE : factor->is_k_major ? BATCHED_DIRECT : BATCHED_LINES;
    factor->staged = factor->access == BATCHED_DIRECT ? 0
                     : factor->access == BATCHED_WHOLE
                         ? factor->elements
                         : round_up(k->extent, BATCHED_STEP) * (outer->extent + BATCHED_PAD);
    return is_whole && batch_stride == factor->elements && c->operand[f].tensor->alignment % 16 == 0 &&
           c->operand[f].first == 0;
}

/* The result in the order of its memory: batch, then rows and columns or columns and rows. */
static weftStatus_t find_result(struct batched *b) {
    struct contraction *c = &b->c;
    struct modes *batch = &c->modes[BATCH];
    int count = batch->count, row = c->modes[ROW].at[0].dim, column = c->modes[COLUMN].at[0].dim;
    int dims[MODES_MAX];
    for (int d = 0; d < count; d++)
        dims[d] = batch->at[d].dim;
    c->is_direct = true;
    contraction_flatten(c);
    for (int d = 0; d < count; d++)
        if (batch->at[d].dim != dims[d])
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its result must be stored one matrix after the other.",
                 descriptor_label(c->node->op));
    b->rows_first = batch->at[count].dim == row && batch->at[count + 1].dim == column;
    if (!b->rows_first && !(batch->at[count].dim == column && batch->at[count + 1].dim == row))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its result must be stored one matrix after the other.",
             descriptor_label(c->node->op));
    return epilogue_analyse(c);
}

static weftStatus_t find_shape(struct batched *b, const struct region *region, const struct device *device) {
    struct contraction *c = &b->c;
    *b = (struct batched){0};
    TRY(contraction_find(c, region));
    const char *name = descriptor_label(c->node->op);
    if (op_of(c->node->op) != &matmul_op || contraction_has_overrides(c) || c->fill != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only matmuls without overrides and padding.", name);
    c->arithmetic = contraction_arithmetic(c, device);
    weftDataType_t type = operand_type(c, OPERAND_A);
    if ((c->arithmetic != MMA_BF16 && c->arithmetic != MMA_F16) || device->cuda.major < 8 ||
        type != operand_type(c, OPERAND_B) || (type != WEFT_DATA_BFLOAT16 && type != WEFT_DATA_HALF))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: operands must have the same 16-bit type.", name);
    struct modes batch = c->modes[BATCH];
    modes_merge(&batch);
    if (batch.count != 1 || c->modes[ROW].count != 1 || c->modes[COLUMN].count != 1 || c->modes[K].count != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: needs a batch of matrices, one after the other in both operands.",
             name);
    b->matrices = batch.at[0].extent;
    b->rows = c->modes[ROW].at[0].extent;
    b->columns = c->modes[COLUMN].at[0].extent;
    b->ks = c->modes[K].at[0].extent;
    for (int f = 0; f < OPERANDS; f++)
        if (!find_factor(&b->factors[f], c, f, batch.at[0].stride[f]))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: the matrices of %s must be contiguous and aligned.", name,
                 descriptor_label(&c->operand[f].tensor->base));
    if (b->rows > SIDE_MAX || b->columns > SIDE_MAX || contraction_elements(c) >= INT32_MAX - (1 << 16))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: more than %d rows or columns, or 2^31 results.", name, SIDE_MAX);
    c->is_small = c->has_k16 = true;
    c->splits = 1;
    return find_result(b);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* Units as large as registers allow, with as few rows and columns after the last one as possible. */
static void choose_units(struct batched *b) {
    int64_t m = divide_up(b->rows, 16), n = divide_up(b->columns, 8);
    b->units_m = b->units_n = 1;
    while (divide_up(m, b->units_m) * divide_up(n, b->units_n) > UNIT_SUMS_MAX) {
        /* Halves the side with more elements. */
        if (divide_up(m, b->units_m) * 2 > divide_up(n, b->units_n) && divide_up(m, b->units_m) > 1)
            b->units_m++;
        else
            b->units_n++;
    }
    b->unit_m = (int)divide_up(m, b->units_m);
    b->unit_n = (int)divide_up(n, b->units_n);
    b->units_m = (int)divide_up(m, b->unit_m);
    b->units_n = (int)divide_up(n, b->unit_n);
}

/* Warps share the k of a unit until the device has 16 warps per multiprocessor, with two steps each at least. */
static void choose_sharers(struct batched *b, const struct device *device) {
    int64_t units = b->matrices * b->units_m * b->units_n, wanted = (int64_t)device->cuda.multiprocessors * 16;
    b->sharers = 1;
    while (b->sharers < SHARERS_MAX && units * b->sharers < wanted && b->ks / (b->sharers * 2) >= 2 * BATCHED_STEP &&
           b->units_m * b->units_n * b->sharers * 2 <= WARPS_MAX)
        b->sharers *= 2;
}

/* The shared memory of a block of `count` matrices. */
static void place(struct batched *b, int count) {
    int64_t partial = b->sharers > 1 ? (int64_t)count * b->units_m * b->units_n * (b->sharers - 1) * b->unit_m *
                                           b->unit_n * 4 * 32 * 4
                                     : 0;
    b->per_block = count;
    b->b_at = round_up(b->factors[OPERAND_A].staged * count * 2, 16);
    b->partial_at = b->b_at + round_up(b->factors[OPERAND_B].staged * count * 2, 16);
    b->results_at = b->partial_at + partial;
    b->shared_bytes = b->results_at + round_up(b->rows * b->columns * count * (is_plain(b) ? 2 : 4), 16);
}

/* Blocks start at multiples of 16 bytes of operands that are copied whole, and of runs of results. */
static bool is_aligned(const struct batched *b, int count) {
    for (int f = 0; f < OPERANDS; f++)
        if (b->factors[f].access == BATCHED_WHOLE && b->factors[f].elements * count % 8 != 0)
            return false;
    return b->rows * b->columns * count % b->c.epilogue.run == 0;
}

/* As many matrices as occupy the warps of a block, while all multiprocessors have blocks. With sharers, no more than
   that, because each warp takes one turn. */
static weftStatus_t choose_blocks(struct batched *b, const struct device *device) {
    int warps = b->units_m * b->units_n * b->sharers, chosen = 0;
    int64_t most = device->cuda.shared_per_block < BLOCK_BYTES_MAX ? device->cuda.shared_per_block : BLOCK_BYTES_MAX;
    for (int count = 1; count <= MATRICES_MAX; count++) {
        if (!is_aligned(b, count) || (b->sharers > 1 && count * warps > WARPS_MAX))
            continue;
        bool leaves_blocks = b->matrices >= (int64_t)count * device->cuda.multiprocessors * 2;
        if (chosen && (count * warps > WARPS_MAX || !leaves_blocks))
            break;
        place(b, count);
        if (b->shared_bytes > most)
            break;
        chosen = count;
    }
    if (!chosen)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its matrices exceed shared memory.",
             descriptor_label(b->c.node->op));
    place(b, chosen);
    b->threads = 32 * (chosen * warps < WARPS_MAX ? chosen * warps : WARPS_MAX);
    int loads = 2 * b->unit_m + b->unit_n;
    int64_t steps = divide_up(b->ks, BATCHED_STEP * b->sharers);
    b->unroll = 1;
    while (b->factors[OPERAND_A].access == BATCHED_DIRECT && b->factors[OPERAND_B].access == BATCHED_DIRECT &&
           b->unroll < steps && loads * (b->unroll + 1) <= IN_FLIGHT)
        b->unroll++;
    return WEFT_STATUS_SUCCESS;
}

/* Instructions of a warp for all that it does for a unit, of which a multiprocessor issues two per clock; the copies
   overlap with other blocks. */
static double issue_seconds(const struct batched *b, const struct device *device) {
    static const double fetches[] = {[BATCHED_DIRECT] = 6, [BATCHED_LINES] = 4, [BATCHED_WHOLE] = 28};
    double steps = (double)divide_up(b->ks, BATCHED_STEP);
    double each = steps * (2.0 * b->unit_m * fetches[b->factors[OPERAND_A].access] +
                           b->unit_n * fetches[b->factors[OPERAND_B].access] + 2.0 * b->unit_m * b->unit_n) +
                  b->unit_m * b->unit_n * 4.0 * 6 + 60 * b->sharers;
    double results = (double)(b->rows * b->columns) / 32 / b->c.epilogue.run *
                     (20 + b->c.epilogue.run * (3 + epilogue_instructions(&b->c)));
    double all = (double)b->matrices * (each * b->units_m * b->units_n + results);
    return all / (2.0 * device->cuda.multiprocessors * (double)device->cuda.clock_khz * 1e3);
}

static weftStatus_t analyse(struct batched *b, const struct region *region, const struct device *device) {
    TRY(find_shape(b, region, device));
    choose_units(b);
    choose_sharers(b, device);
    TRY(choose_blocks(b, device));
    double moving = contraction_memory_seconds(&b->c, device) / PRICE_MEMORY_SHARE, issuing = issue_seconds(b, device);
    /* Waits for memory and computing overlap only between blocks. */
    b->c.seconds = 2.6e-6 + (moving > issuing ? moving + issuing * 0.6 : issuing + moving * 0.6);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct batched b;
    TRY(analyse(&b, region, device));
    offer->seconds = b.c.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

static void emit_structure(struct kernel_source *source, const struct batched *b) {
    static const char letters[] = "AB";
    contraction_emit_begin(source, &b->c);
    emit_constant(source, "THREADS", b->threads);
    /* 128 registers for each of 512 threads of a multiprocessor. */
    emit_constant(source, "BLOCKS", 512 / b->threads < 4 ? 512 / b->threads : 4);
    emit_constant(source, "MATRICES", b->per_block);
    emit_constant(source, "SHARERS", b->sharers);
    emit_constant(source, "UNIT_M", b->unit_m);
    emit_constant(source, "UNIT_N", b->unit_n);
    emit_constant(source, "UNROLL", b->unroll);
    for (int f = 0; f < OPERANDS; f++) {
        emit_constant(source, named("%c_ACCESS", letters[f]).text, b->factors[f].access);
        emit_constant(source, named("%c_IS_K_MAJOR", letters[f]).text, b->factors[f].is_k_major);
        emit_constant(source, named("%c_IS_PAIRED", letters[f]).text, b->factors[f].is_k_major && b->ks % 2 == 0);
    }
    emit_constant(source, "IS_PAIRED", b->rows_first && b->columns % 2 == 0);
    emit_constant(source, "ROWS_FIRST", b->rows_first);
    emit_type(source, "factor_t", operand_type(&b->c, OPERAND_A));
    emit_type(source, "result_t", is_plain(b) ? operand_type(&b->c, OPERAND_A) : WEFT_DATA_FLOAT);
}

static void emit_arguments(struct kernel_source *source, const struct batched *b) {
    emit_pointer(source, operand_type(&b->c, OPERAND_A), b->c.operand[OPERAND_A].value, 0, "a");
    emit_pointer(source, operand_type(&b->c, OPERAND_B), b->c.operand[OPERAND_B].value, 0, "b");
    emit_number(source, b->matrices, "matrices");
    emit_number(source, b->rows, "rows");
    emit_number(source, b->columns, "columns");
    emit_number(source, b->ks, "ks");
    emit_number(source, b->units_m, "units_m");
    emit_number(source, b->units_n, "units_n");
    emit_number(source, b->b_at, "b_at");
    emit_number(source, b->partial_at, "partial_at");
    emit_number(source, b->results_at, "results_at");
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct batched b;
    struct cuda_kernel *kernel;
    struct kernel_source source;
    (void)knobs;
    TRY(analyse(&b, &step->region, device));
    step->seconds = b.c.seconds;
    TRY(contraction_add_kernel(&kernel, step, &b.c, arena));
    if (!kernel)
        return WEFT_STATUS_SUCCESS;
    emit_structure(&source, &b);
    emit_arguments(&source, &b);
    epilogue_emit(&source, &b.c);
    TRY(kernel_finish(&source, kernel, "product/batched/batched.cuh", "batched", arena));
    contraction_set_launch(kernel, divide_up(b.matrices, b.per_block), b.threads, b.shared_bytes);
    return arena_print(arena, &step->detail,
                       "tensor cores, %d matri%s per block, %d warp%s, units of %dx%d, %d part%s of k, epilogue: %d "
                       "operation%s",
                       b.per_block, b.per_block == 1 ? "x" : "ces", b.threads / 32, plural(b.threads / 32),
                       b.unit_m * 16, b.unit_n * 8, b.sharers, plural(b.sharers), b.c.region->count - 1,
                       plural(b.c.region->count - 1));
}

const struct family cuda_batched = {
    .name = "cuda.batched",
    .doc = "a batch of small matmuls in 16 bits, and the pointwise operations after them",
    .accepts = accepts,
    .build = build,
    .may_alias = contraction_may_alias,
};
