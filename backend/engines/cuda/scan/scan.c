/* SPDX-License-Identifier: Apache-2.0 */
/* Scan family: cumulative sums, products and extremes. Lines of adjacent elements are processed by warps or blocks
   (scan_rows.cuh), others by threads (scan_columns.cuh). If lines are too few to fill the device, each is split: a
   first launch computes the total of each part. Results are combined in a fixed order. */
#include "graph/ops/scan.h"
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/lines.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

enum {
    WARP = 32,
    THREADS = 256,
    ITEMS_MAX = 8,     /* adjacent elements per thread */
    WARP_STEPS = 1024, /* longer lines are processed by blocks */
    COLUMN_THREADS = 128,
    PARTS_MAX = 256, /* every block reads the totals of all parts before its own */
    ROW_PART = 8192, /* minimum elements of a part */
    COLUMN_PART = 64,
    BLOCKS_WANTED = 8, /* per multiprocessor */
};

enum { OF_X, OF_Y, OF_INDEX, SCAN_TENSORS };

struct scan {
    const struct scan_op *op;
    const struct region *region;
    const struct tensor *tensors[SCAN_TENSORS]; /* NULL if absent */
    struct lines lines;
    bool is_columns;
    const char *sum; /* type of the sums */
    int64_t length, threads, group, items, run;
    int64_t parts, chunk; /* of a line; elements of a part */
};

static bool is_stored(const struct region *region, const struct tensor *tensor) {
    return tensor && !value_is_dead(&region->graph->values[graph_find_value(region->graph, tensor)]);
}

static int64_t blocks_of(const struct scan *s) {
    return divide_up(s->lines.count, s->is_columns ? COLUMN_THREADS : s->threads / s->group);
}

static void choose_parts(struct scan *s, const struct device *device) {
    int64_t wanted = (int64_t)device->cuda.multiprocessors * BLOCKS_WANTED,
            least = s->is_columns ? COLUMN_PART : ROW_PART;
    int64_t parts = min64(divide_up(wanted, max64(blocks_of(s), 1)), s->length / least);
    s->parts = max64(1, min64(parts, PARTS_MAX));
    s->chunk =
        s->parts > 1 ? round_up(divide_up(s->length, s->parts), s->is_columns ? 1 : s->group * s->items) : s->length;
    s->parts = s->length ? divide_up(s->length, s->chunk) : 1;
}

static weftStatus_t analyse(struct scan *s, const struct region *region, const struct device *device) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &scan_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a scan.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    *s = (struct scan){.op = (const struct scan_op *)op, .region = region};
    const struct tensor *tensors[] = {s->op->x, s->op->y, s->op->index};
    for (int k = 0; k < SCAN_TENSORS; k++) {
        s->tensors[k] = k == OF_X || is_stored(region, tensors[k]) ? tensors[k] : NULL;
        if (s->tensors[k] && !cuda_type_name((weftDataType_t)tensors[k]->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: elements of %s are narrower than a byte.",
                 descriptor_label(op), descriptor_label(&tensors[k]->base));
    }
    int axis = axis_dimension(s->op->axis, s->op->x);
    s->length = s->op->x->dims.at[axis];
    if (s->length > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its lines have %lld elements, kernels count to 2^31.",
             descriptor_label(op), (long long)s->length);
    lines_find(&s->lines, axis, s->tensors, SCAN_TENSORS);
    TRY(lines_check(&s->lines, op));
    s->is_columns = s->lines.steps[OF_X] != 1 && s->lines.count >= WARP;
    s->sum = !dtype_is_float(scan_math(s->op))                                ? "i64"
             : scan_math(s->op) == WEFT_DATA_DOUBLE                           ? "double"
             : s->tensors[OF_Y] && s->tensors[OF_Y]->type == WEFT_DATA_DOUBLE ? "double"
                                                                              : "float";
    s->group = s->length <= WARP_STEPS ? WARP : THREADS;
    s->threads = s->is_columns ? COLUMN_THREADS : THREADS;
    for (s->items = 1; s->items < ITEMS_MAX && s->items * s->group < s->length;)
        s->items *= 2;
    s->run = lines_run(&s->lines, OF_X, s->op->x, s->items);
    choose_parts(s, device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct scan s;
    TRY(analyse(&s, region, device));
    double bytes = (double)tensor_bytes(s.op->x) * (s.parts > 1 ? 2 : 1);
    for (int k = OF_Y; k < SCAN_TENSORS; k++)
        bytes += s.tensors[k] ? (double)tensor_bytes(s.tensors[k]) : 0;
    offer->seconds = PRICE_LAUNCH_SECONDS * (s.parts > 1 ? 2 : 1) + price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

/* Emits `running`, the operator. */
static void emit_running(struct kernel_source *source, const struct scan *s) {
    static const char *const names[] = {[WEFT_REDUCE_TENSOR_ADD] = "sum<sum_t>",
                                        [WEFT_REDUCE_TENSOR_MUL] = "product<sum_t>",
                                        [WEFT_REDUCE_TENSOR_MIN] = "extreme<sum_t, false>",
                                        [WEFT_REDUCE_TENSOR_MAX] = "extreme<sum_t, true>"};
    text_add(&source->constants, "#include \"core/reduce.cuh\"\nusing sum_t = %s;\n", s->sum);
    text_add(&source->constants,
             "namespace weft {\ntemplate <class A, bool IS_MAX> struct extreme;\nusing running = %s;\n"
             "} // namespace weft\n",
             names[s->op->mode]);
}

static weftStatus_t add_kernel(struct cuda_step *state, const struct scan *s, bool is_totals, struct arena *arena) {
    struct kernel_source source;
    static const char *const names[] = {"x", "y", "index"};
    kernel_source_init(&source, s->region);
    emit_running(&source, s);
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {{"THREADS", s->threads},
                     {"GROUP", s->group},
                     {"ITEMS", s->items},
                     {"RUN", s->run},
                     {"IS_SPLIT", s->parts > 1},
                     {"IS_TOTALS", is_totals},
                     {"IS_EXCLUSIVE", s->op->is_exclusive},
                     {"IS_REVERSED", s->op->is_reversed},
                     {"HAS_Y", s->tensors[OF_Y] != NULL},
                     {"HAS_INDEX", s->tensors[OF_INDEX] != NULL}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(&source, constants[i].name, constants[i].value);
    emit_number(&source, s->length, "length");
    emit_number(&source, s->chunk, "chunk");
    emit_scratch(&source, "running", 0, "totals");
    emit_lines(&source, &s->lines);
    for (int k = 0; k < SCAN_TENSORS; k++)
        emit_lines_of(&source, &s->lines, k, s->tensors[k], names[k]);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    if (s->is_columns)
        TRY(kernel_finish(&source, kernel, "scan/scan_columns.cuh", "scan_columns", arena));
    else
        TRY(kernel_finish(&source, kernel, "scan/scan_rows.cuh", "scan_rows", arena));
    kernel->grid[0] = (uint32_t)blocks_of(s);
    kernel->grid[1] = (uint32_t)s->parts;
    kernel->grid[2] = 1;
    kernel->block = (uint32_t)s->threads;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct scan s;
    struct cuda_step *state;
    TRY(analyse(&s, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (s.lines.count == 0 || s.length == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    if (s.parts > 1) {
        /* A total is at most 16 bytes: a number and its position. */
        step->workspace_bytes = s.parts * s.lines.count * 16;
        TRY(add_kernel(state, &s, true, arena));
    }
    TRY(add_kernel(state, &s, false, arena));
    return arena_print(arena, &step->detail, "%s per line, %lld part%s, sums in %s",
                       s.is_columns      ? "a thread"
                       : s.group == WARP ? "a warp"
                                         : "a block",
                       (long long)s.parts, plural(s.parts), s.sum);
}

const struct family cuda_scan = {
    .name = "cuda.scan",
    .doc = "cumulative sums, products and extremes",
    .accepts = accepts,
    .build = build,
};
