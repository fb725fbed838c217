/* SPDX-License-Identifier: Apache-2.0 */
/* Gather family: selections by indices (gather.cuh), and sums at indices, in the order of the indices (add_slices.cuh,
   add_elements.cuh). With sums in any order, every element is added atomically (add_begin.cuh, add_any.cuh). */
#include "graph/ops/gather.h"
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/lines.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

enum {
    THREADS = 256,
    SLICE_THREADS = 128,  /* adjacent lines of a block of add_slices.cuh */
    SHARED_BYTES = 32768, /* of its sums */
    WARP = 32,
    RUN_MAX = 16, /* adjacent elements per thread */
    BLOCKS_PER_MULTIPROCESSOR = 64,
};

enum { OF_WHOLE, OF_SELECTED, OF_INDEX, OF_X, GATHER_TENSORS };

struct gather {
    const struct gather_op *op;
    const struct region *region;
    bool is_sum, has_slices, is_direct, is_any_order;
    const struct tensor *tensors[GATHER_TENSORS]; /* NULL if absent; OF_INDEX: also if it has a number per slice */
    struct lines lines;
    const char *sum; /* type of sums, or in which elements are converted */
    int64_t sum_bytes, extent, count, positions, run;
    bool is_index_fast; /* adjacent threads have adjacent indices */
};

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static weftStatus_t read_op(struct gather *g, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &gather_op && op_of(op) != &scatter_add_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s has no indices.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    *g = (struct gather){.op = (const struct gather_op *)op, .region = region};
    g->is_sum = op_of(op) == &scatter_add_op;
    g->has_slices = gather_has_slices(g->op);
    g->tensors[OF_WHOLE] = gather_whole(g->op);
    g->tensors[OF_SELECTED] = gather_selected(g->op);
    g->tensors[OF_INDEX] = g->has_slices ? NULL : g->op->index;
    g->tensors[OF_X] = g->is_sum ? g->op->x : NULL;
    for (int k = 0; k < GATHER_TENSORS; k++)
        if (g->tensors[k] && !cuda_type_name((weftDataType_t)g->tensors[k]->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: elements of %s are narrower than a byte.",
                 descriptor_label(op), descriptor_label(&g->tensors[k]->base));
    return WEFT_STATUS_SUCCESS;
}

/* Sums are calculated as declared, or in double if the result is double. Copies that convert are exact in the type. */
static void choose_sum(struct gather *g) {
    weftDataType_t of_y = (weftDataType_t)g->op->y->type;
    weftDataType_t math = g->is_sum ? scatter_math(g->op) : (weftDataType_t)g->op->x->type;
    bool is_whole = !dtype_is_float(math), is_wide = math == WEFT_DATA_DOUBLE || of_y == WEFT_DATA_DOUBLE;
    g->sum = is_whole ? "i64" : is_wide ? "double" : "float";
    g->sum_bytes = is_whole || is_wide ? 8 : 4;
    g->is_direct = of_y == (is_whole ? WEFT_DATA_INT64 : is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
    g->positions = SHARED_BYTES / (SLICE_THREADS * g->sum_bytes);
}

/* The largest run of adjacent lines that one access to both tensors can move; 1 for elements. */
static int64_t find_run(const struct gather *g) {
    int64_t run = RUN_MAX;
    int last = g->lines.rank - 1;
    if (!g->has_slices || g->is_sum || last < 0)
        return 1;
    for (int k = OF_WHOLE; k <= OF_SELECTED; k++) {
        const struct tensor *t = g->tensors[k];
        int64_t fits = gcd64(t->alignment, 16) / dtype_bytes((weftDataType_t)t->type, 1);
        if (g->lines.strides[k][last] != 1)
            return 1;
        run = gcd64(gcd64(run, fits), gcd64(g->lines.steps[k], g->lines.extents[last]));
        for (int d = 0; d < last; d++)
            run = gcd64(run, g->lines.strides[k][d]);
    }
    return max64(run, 1);
}

static weftStatus_t analyse(struct gather *g, const struct region *region, int used) {
    TRY(read_op(g, region));
    int axis = axis_dimension(g->op->axis, g->tensors[OF_WHOLE]);
    g->extent = g->tensors[OF_WHOLE]->dims.at[axis], g->count = g->tensors[OF_SELECTED]->dims.at[axis];
    lines_find(&g->lines, axis, g->tensors, GATHER_TENSORS);
    TRY(lines_check(&g->lines, &g->op->base));
    if (g->extent > INT32_MAX || g->count > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its axis has more than 2^31 elements, which kernels do not count.",
             descriptor_label(&g->op->base));
    choose_sum(g);
    g->run = find_run(g);
    g->is_index_fast = g->lines.steps[OF_SELECTED] == 1;
    g->is_any_order = (used & RELAX_ORDER) != 0;
    return WEFT_STATUS_SUCCESS;
}

/* Additions in any order are atomic operations on floats. */
static bool can_relax(const struct gather *g) { return g->is_sum && g->is_direct && g->sum_bytes == 4; }

static int relaxes(const struct graph *graph, int node) {
    const struct descriptor *op = graph->nodes[node].op;
    return op_of(op) == &scatter_add_op && ((const struct gather_op *)op)->y->type == WEFT_DATA_FLOAT ? RELAX_ORDER : 0;
}

static double selected_bytes(const struct gather *g) { return (double)tensor_own_bytes(g->tensors[OF_SELECTED]); }

/* Every block of add_slices.cuh reads all indices, from the L2 cache at about four times the speed of memory, unless
   they are sorted. A warp of add_elements.cuh takes about a microsecond for 32 elements. */
static double in_order_seconds(const struct gather *g, const struct device *device) {
    double bytes = selected_bytes(g) + (double)tensor_own_bytes(g->op->y) * (g->op->x ? 2 : 1);
    double blocks = (double)divide_up(g->extent, g->positions) * (double)divide_up(g->lines.count, SLICE_THREADS);
    double indices = (double)tensor_bytes(g->op->index) * (g->has_slices && !g->op->is_sorted ? blocks / 4 : 1);
    double warps = (double)g->lines.count / (device->cuda.multiprocessors * 32.0);
    double steps = g->has_slices ? 0 : 1e-6 * (double)divide_up(g->count, WARP) * (warps > 1 ? warps : 1);
    double moving = price_moving(bytes + indices, device);
    return PRICE_LAUNCH_SECONDS + (moving > steps ? moving : steps);
}

static weftStatus_t price(const struct region *region, const struct device *device, int used, double *seconds) {
    struct gather g;
    TRY(analyse(&g, region, used));
    if (g.is_any_order && !can_relax(&g))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: only sums of FLOAT results are added in any order.",
             descriptor_label(&g.op->base));
    if (!g.is_sum)
        *seconds =
            PRICE_LAUNCH_SECONDS + price_moving(2 * selected_bytes(&g) + (double)tensor_own_bytes(g.op->index), device);
    else if (g.is_any_order) /* an atomic operation reads and writes */
        *seconds = 2 * PRICE_LAUNCH_SECONDS +
                   price_moving(3 * selected_bytes(&g) + (double)tensor_own_bytes(g.op->y) * (g.op->x ? 2 : 1), device);
    else
        *seconds = in_order_seconds(&g, device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    return offer_relaxed(offer, region, device, RELAX_ORDER, price);
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

enum kernel_kind { KERNEL_GATHER, KERNEL_SLICES, KERNEL_ELEMENTS, KERNEL_BEGIN, KERNEL_ANY };

static const struct {
    const char *file, *entry;
} kernels[] = {[KERNEL_GATHER] = {"gather/gather.cuh", "gather"},
               [KERNEL_SLICES] = {"gather/add_slices.cuh", "add_slices"},
               [KERNEL_ELEMENTS] = {"gather/add_elements.cuh", "add_elements"},
               [KERNEL_BEGIN] = {"gather/add_begin.cuh", "add_begin"},
               [KERNEL_ANY] = {"gather/add_any.cuh", "add_any"}};

/* Emits the index: its pointer, the stride between indices, and index_line() if there is one for each element. */
static void emit_index(struct kernel_source *source, const struct gather *g) {
    const struct tensor *index = g->op->index;
    if (g->has_slices) {
        emit_pointer(source, (weftDataType_t)index->type, graph_find_value(source->graph, index), 0, "index");
        text_add(&source->code, "DEVICE i64 index_line(const arguments &, u32) { return 0; }\n\n");
        emit_number(source, index->strides.at[0], "index_stride");
        return;
    }
    emit_lines_of(source, &g->lines, OF_INDEX, index, "index");
    emit_number(source, g->lines.steps[OF_INDEX], "index_stride");
}

static void emit_tensors(struct kernel_source *source, const struct gather *g) {
    emit_lines(source, &g->lines);
    emit_lines_of(source, &g->lines, g->is_sum ? OF_WHOLE : OF_SELECTED, g->op->y, "y");
    if (g->is_sum)
        emit_lines_of(source, &g->lines, OF_SELECTED, g->op->src, "src");
    emit_lines_of(source, &g->lines, g->is_sum ? OF_X : OF_WHOLE, g->op->x, "x");
    emit_index(source, g);
}

/* Emits how elements, `total` in all, are counted: `inner` is the extent of the faster coordinate. */
static void emit_counting(struct kernel_source *source, int64_t total, int64_t inner) {
    text_add(&source->constants, "using position = %s;\n", total < INT32_MAX ? "u32" : "i64");
    emit_number(source, total, "total");
    emit_divisor(source, inner, "inner");
}

static weftStatus_t add_kernel(struct cuda_step *state, const struct gather *g, enum kernel_kind kind, int64_t total,
                               struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, g->region);
    text_add(&source.constants, "#include \"core/reduce.cuh\"\nusing sum_t = %s;\nusing number_t = sum_t;\n", g->sum);
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {{"THREADS", kind == KERNEL_SLICES ? SLICE_THREADS : THREADS},
                     {"RUN", g->run},
                     {"M_FIRST", g->is_index_fast},
                     {"HAS_SLICES", g->has_slices},
                     {"POSITIONS", g->positions},
                     {"IS_SORTED", g->op->is_sorted},
                     {"IS_DIRECT", g->is_direct},
                     {"HAS_X", g->op->x != NULL}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(&source, constants[i].name, constants[i].value);
    emit_counting(&source, total,
                  kind == KERNEL_GATHER && g->is_index_fast ? g->count : divide_up(g->lines.count, g->run));
    emit_number(&source, g->extent, "extent");
    emit_number(&source, g->count, "count");
    emit_number(&source, divide_up(g->extent, g->positions), "blocks");
    emit_scratch(&source, "sum_t", 0, "sums");
    emit_tensors(&source, g);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, kernels[kind].file, kernels[kind].entry, arena));
    int64_t most = (int64_t)state->device.cuda.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    kernel->grid[0] = (uint32_t)min64(divide_up(total, THREADS), most);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = kind == KERNEL_SLICES ? SLICE_THREADS : THREADS;
    return WEFT_STATUS_SUCCESS;
}

/* Elements that the loops of add_begin.cuh and add_any.cuh count. */
static weftStatus_t add_any_order(struct cuda_step *state, const struct gather *g, struct arena *arena) {
    TRY(add_kernel(state, g, KERNEL_BEGIN, g->extent * g->lines.count, arena));
    return g->count ? add_kernel(state, g, KERNEL_ANY, g->count * g->lines.count, arena) : WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_in_order(struct cuda_step *state, const struct gather *g, struct arena *arena) {
    int64_t blocks = g->has_slices ? divide_up(g->extent, g->positions) * divide_up(g->lines.count, SLICE_THREADS)
                                   : divide_up(g->lines.count, THREADS / WARP);
    if (blocks > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it needs %lld blocks, a grid has 2^31.",
             descriptor_label(&g->op->base), (long long)blocks);
    TRY(add_kernel(state, g, g->has_slices ? KERNEL_SLICES : KERNEL_ELEMENTS, 1, arena));
    state->kernels[state->count - 1].grid[0] = (uint32_t)blocks;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct gather g;
    struct cuda_step *state;
    TRY(analyse(&g, &step->region, step->used));
    TRY(arena_alloc(arena, &state, sizeof *state));
    state->device = *device;
    step->state = state;
    int64_t total = g.count * (g.lines.count / g.run);
    if (g.lines.count == 0 || (g.is_sum ? g.extent == 0 : total == 0))
        return arena_print(arena, &step->detail, "nothing to compute");
    if (!g.is_sum) {
        TRY(add_kernel(state, &g, KERNEL_GATHER, total, arena));
        return arena_print(arena, &step->detail, "%lld element%s per access", (long long)g.run, plural(g.run));
    }
    if (g.is_any_order) {
        TRY(add_any_order(state, &g, arena));
        return arena_print(arena, &step->detail, "atomic additions");
    }
    step->workspace_bytes = g.has_slices || g.is_direct ? 0 : g.extent * g.lines.count * g.sum_bytes;
    TRY(add_in_order(state, &g, arena));
    return arena_print(arena, &step->detail, "%s, sums in %s, in the order of the indices%s",
                       g.has_slices ? "slices" : "elements", g.sum, g.op->is_sorted ? ", which are searched" : "");
}

const struct family cuda_gather = {
    .name = "cuda.gather",
    .doc = "selections by indices, and sums at indices",
    .accepts = accepts,
    .build = build,
    .relaxes = relaxes,
};
