/* SPDX-License-Identifier: Apache-2.0 */
/* Top-k family: the largest or smallest elements of lines. One element is found by comparing (best.cuh), several of a
   short line by a warp (few.cuh), others by a radix search and a sort (select.cuh). */
#include "graph/ops/top_k.h"
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/lines.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

enum {
    WARP = 32,
    THREADS = 256,
    KEYS_MAX = 32,     /* keys per lane of few.cuh */
    FEW_MAX = 32,      /* elements that few.cuh finds, one after the other */
    WARP_STEPS = 1024, /* best.cuh: longer lines are processed by blocks */
    SORTED_MAX = 2048, /* entries in shared memory: at most 32 KiB */
    PARTS_MAX = 256,
    PART = 8192,       /* minimum elements of a part */
    BLOCKS_WANTED = 8, /* per multiprocessor */
};

enum { OF_X, OF_VALUES, OF_INDICES, TOP_K_TENSORS };

enum selection { METHOD_BEST, METHOD_FEW, METHOD_SELECT };

struct top_k {
    const struct top_k_op *op;
    const struct region *region;
    const struct tensor *tensors[TOP_K_TENSORS]; /* NULL if absent */
    struct lines lines;
    enum selection method;
    const char *number; /* type that represents every element */
    int64_t key_bytes;
    int64_t length, group, keys, padded, parts, chunk;
    bool is_columns;
};

static bool is_stored(const struct region *region, const struct tensor *tensor) {
    return tensor && !value_is_dead(&region->graph->values[graph_find_value(region->graph, tensor)]);
}

static int64_t blocks_of(const struct top_k *t) {
    int64_t members = t->method == METHOD_SELECT ? THREADS
                      : t->method == METHOD_FEW  ? WARP
                      : t->is_columns            ? 1
                                                 : t->group;
    return divide_up(t->lines.count, THREADS / members);
}

/* Splits long lines if they are too few to fill the device. */
static void choose_parts(struct top_k *t, const struct device *device) {
    int64_t wanted = (int64_t)device->cuda.multiprocessors * BLOCKS_WANTED;
    int64_t parts = min64(divide_up(wanted, max64(blocks_of(t), 1)), t->length / PART);
    t->parts = t->method == METHOD_BEST ? max64(1, min64(parts, PARTS_MAX)) : 1;
    t->chunk = divide_up(t->length, t->parts);
}

static void choose_method(struct top_k *t, const struct device *device) {
    int64_t count = t->op->count;
    t->method = count == 1                                                  ? METHOD_BEST
                : count <= FEW_MAX && t->length <= KEYS_MAX * (int64_t)WARP ? METHOD_FEW
                                                                            : METHOD_SELECT;
    t->is_columns = t->method == METHOD_BEST && t->lines.steps[OF_X] != 1 && t->lines.count >= WARP;
    t->group = t->length <= WARP_STEPS ? WARP : THREADS;
    for (t->keys = 1; t->keys * WARP < t->length && t->keys < KEYS_MAX;)
        t->keys *= 2;
    for (t->padded = 2; t->padded < count;)
        t->padded *= 2;
    choose_parts(t, device);
}

static weftStatus_t analyse(struct top_k *t, const struct region *region, const struct device *device) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &top_k_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s does not select elements.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    *t = (struct top_k){.op = (const struct top_k_op *)op, .region = region};
    const struct tensor *tensors[] = {t->op->x, t->op->values, t->op->indices};
    for (int k = 0; k < TOP_K_TENSORS; k++) {
        t->tensors[k] = k == OF_X || is_stored(region, tensors[k]) ? tensors[k] : NULL;
        if (t->tensors[k] && !cuda_type_name((weftDataType_t)tensors[k]->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: elements of %s are narrower than a byte.",
                 descriptor_label(op), descriptor_label(&tensors[k]->base));
    }
    int axis = axis_dimension(t->op->axis, t->op->x);
    const struct dtype *type = dtype_of((weftDataType_t)t->op->x->type);
    t->length = t->op->x->dims.at[axis];
    if (t->length > INT32_MAX / 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its lines have %lld elements, kernels count to 2^30.",
             descriptor_label(op), (long long)t->length);
    lines_find(&t->lines, axis, t->tensors, TOP_K_TENSORS);
    TRY(lines_check(&t->lines, op));
    bool is_narrow = type->is_float ? type->bits <= 32 : type->bits <= 16; /* float is exact */
    t->number = is_narrow ? "float" : type->is_float ? "double" : "i64";
    t->key_bytes = is_narrow ? 4 : 8;
    choose_method(t, device);
    return WEFT_STATUS_SUCCESS;
}

/* A radix search reads each line once per byte of the keys and once more; lines usually remain in the L2 cache. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct top_k t;
    TRY(analyse(&t, region, device));
    double bytes = (double)tensor_bytes(t.op->x) * (t.method == METHOD_SELECT ? (double)t.key_bytes + 1 : 1);
    for (int k = OF_VALUES; k < TOP_K_TENSORS; k++)
        bytes += t.tensors[k] ? (double)tensor_bytes(t.tensors[k]) : 0;
    offer->seconds = PRICE_LAUNCH_SECONDS * (t.parts > 1 ? 2 : 1) + price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_kernel(struct cuda_step *state, const struct top_k *t, const char *file, const char *entry,
                               int64_t blocks, struct arena *arena) {
    struct kernel_source source;
    static const char *const names[] = {"x", "values", "indices"};
    kernel_source_init(&source, t->region);
    text_add(&source.constants,
             "#include \"core/reduce.cuh\"\nusing number_t = %s;\nusing key_t = %s;\nnamespace weft {\nstruct "
             "element;\n} // namespace weft\n",
             t->number, t->key_bytes == 4 ? "u32" : "u64");
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {{"THREADS", THREADS},
                     {"GROUP", t->group},
                     {"KEYS", t->keys},
                     {"IS_COLUMNS", t->is_columns},
                     {"IS_SPLIT", t->parts > 1},
                     {"IS_WIDE", t->padded > SORTED_MAX},
                     {"SORTED", min64(t->padded, SORTED_MAX)},
                     {"IS_LEAST", t->op->mode == WEFT_REDUCE_TENSOR_MIN},
                     {"NAN_IS_FIRST",
                      t->op->nan_propagation == WEFT_PROPAGATE_NAN && dtype_is_float((weftDataType_t)t->op->x->type)},
                     {"HAS_VALUES", t->tensors[OF_VALUES] != NULL},
                     {"HAS_INDICES", t->tensors[OF_INDICES] != NULL}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(&source, constants[i].name, constants[i].value);
    emit_number(&source, t->length, "length");
    emit_number(&source, t->op->count, "count");
    emit_number(&source, t->padded, "padded");
    emit_number(&source, t->parts, "parts");
    emit_number(&source, t->chunk, "chunk");
    emit_scratch(&source, "element", 0, "entries");
    emit_scratch(&source, "element", 0, "parts_best");
    emit_lines(&source, &t->lines);
    for (int k = 0; k < TOP_K_TENSORS; k++)
        emit_lines_of(&source, &t->lines, k, t->tensors[k], names[k]);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, file, entry, arena));
    kernel->grid[0] = (uint32_t)blocks;
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct top_k t;
    struct cuda_step *state;
    enum { ENTRY_BYTES = 16 }; /* at most: a key and its position */
    TRY(analyse(&t, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (t.lines.count == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    if (t.method == METHOD_SELECT) {
        step->workspace_bytes = t.padded > SORTED_MAX ? t.lines.count * t.padded * ENTRY_BYTES : 0;
        TRY(add_kernel(state, &t, "scan/select.cuh", "select", blocks_of(&t), arena));
        return arena_print(arena, &step->detail, "a block per line, radix search, %lld entries sorted in %s",
                           (long long)t.padded, t.padded > SORTED_MAX ? "memory" : "shared memory");
    }
    if (t.method == METHOD_FEW) {
        TRY(add_kernel(state, &t, "scan/few.cuh", "few", blocks_of(&t), arena));
        return arena_print(arena, &step->detail, "a warp per line, %lld keys per lane", (long long)t.keys);
    }
    TRY(add_kernel(state, &t, "scan/best.cuh", "best", blocks_of(&t), arena));
    if (t.parts > 1) {
        state->kernels[0].grid[1] = (uint32_t)t.parts;
        step->workspace_bytes = t.lines.count * t.parts * ENTRY_BYTES;
        TRY(add_kernel(state, &t, "scan/best_join.cuh", "best_join", divide_up(t.lines.count, THREADS), arena));
    }
    return arena_print(arena, &step->detail, "%s per line, %lld part%s",
                       t.is_columns      ? "a thread"
                       : t.group == WARP ? "a warp"
                                         : "a block",
                       (long long)t.parts, plural(t.parts));
}

const struct family cuda_top_k = {
    .name = "cuda.top_k",
    .doc = "the largest or smallest elements along a dimension",
    .accepts = accepts,
    .build = build,
};
