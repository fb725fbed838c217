/* SPDX-License-Identifier: Apache-2.0 */
/* Rope family: rotary position embedding and its gradient, in one launch (rope.cuh). */
#include "graph/ops/rope.h"
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

#include <stdio.h>
#include <string.h>

enum {
    THREADS = 256,
    HEADS_EACH = 8,        /* heads per thread, if there are enough threads: all share sines and cosines */
    THREADS_WANTED = 1024, /* per multiprocessor */
    BLOCKS_PER_MULTIPROCESSOR = 64,
};

struct rope {
    const struct rope_op *op;
    const struct region *region;
    bool is_double;
    int64_t pairs, kept, units, total, heads, heads_each;
};

static weftStatus_t analyse(struct rope *r, const struct region *region, const struct device *device) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &rope_op && op_of(op) != &rope_backward_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a rotary embedding.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    *r = (struct rope){.op = (const struct rope_op *)op, .region = region};
    const struct tensor *tensors[] = {r->op->x, r->op->y, r->op->freqs};
    r->is_double = r->op->math == WEFT_DATA_DOUBLE;
    for (int k = 0; k < 3; k++) {
        r->is_double = r->is_double || tensors[k]->type == WEFT_DATA_DOUBLE;
        if (!cuda_type_name((weftDataType_t)tensors[k]->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: elements of %s are narrower than a byte.",
                 descriptor_label(op), descriptor_label(&tensors[k]->base));
    }
    const int64_t *dims = r->op->x->dims.at;
    r->pairs = rope_rotated(r->op) / 2, r->kept = rope_kept(r->op), r->units = r->pairs + r->kept;
    r->total = dims[ROPE_BATCH] * dims[ROPE_STEP] * r->units;
    r->heads = dims[ROPE_HEAD];
    for (r->heads_each = HEADS_EACH; r->heads_each > 1;) {
        if (r->total * divide_up(r->heads, r->heads_each) >= (int64_t)device->cuda.multiprocessors * THREADS_WANTED)
            break;
        r->heads_each /= 2;
    }
    if (divide_up(r->heads, r->heads_each) > UINT16_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it has %lld heads, a grid has room for 65535 groups.",
             descriptor_label(op), (long long)r->heads);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct rope r;
    TRY(analyse(&r, region, device));
    double bytes = (double)tensor_own_bytes(r.op->x) + (double)tensor_own_bytes(r.op->y);
    offer->seconds = PRICE_LAUNCH_SECONDS + price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

/* Emits a pointer, its type, and a stride for each letter of `dims` that is not a space. */
static void emit_tensor(struct kernel_source *source, const struct tensor *t, const char *name, const char *dims) {
    char text[32];
    snprintf(text, sizeof text, "%s_t", name);
    emit_type(source, text, (weftDataType_t)t->type);
    emit_pointer(source, (weftDataType_t)t->type, graph_find_value(source->graph, t), 0, name);
    for (int i = 0; dims[i]; i++) {
        snprintf(text, sizeof text, "%s_%c", name, dims[i]);
        if (dims[i] != ' ')
            emit_number(source, t->strides.at[i], text);
    }
}

static void emit(struct kernel_source *source, const struct rope *r) {
    const struct rope_op *op = r->op;
    const int64_t *dims = op->x->dims.at;
    int64_t scale;
    memcpy(&scale, &op->scale, sizeof scale);
    text_add(&source->constants, "using sum_t = %s;\nusing position = %s;\n", r->is_double ? "double" : "float",
             r->total < INT32_MAX ? "u32" : "i64");
    emit_constant(source, "THREADS", THREADS);
    emit_constant(source, "IS_INTERLEAVED", op->is_interleaved);
    emit_constant(source, "IS_BACKWARD", op_of(&op->base) == &rope_backward_op);
    emit_constant(source, "HAS_POSITIONS", op->positions != NULL);
    emit_constant(source, "HAS_OFFSETS", rope_has_offsets(op));
    emit_number(source, scale, "scale");
    emit_number(source, r->total, "total");
    emit_divisor(source, r->units, "units");
    emit_divisor(source, max64(dims[ROPE_STEP], 1), "tokens");
    emit_number(source, r->pairs, "pairs");
    emit_number(source, r->kept, "kept");
    emit_number(source, r->heads, "heads");
    emit_number(source, r->heads_each, "heads_each");
    emit_number(source, op->freqs->dims.at[0], "rows");
    emit_tensor(source, op->x, "x", "bhsd");
    emit_tensor(source, op->y, "y", "bhsd");
    emit_tensor(source, op->freqs, "freqs", "p  d");
    /* Without positions, code that is never executed names a tensor of their type. */
    emit_tensor(source, op->positions ? op->positions : op->freqs, "positions", "b s ");
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct rope r;
    struct cuda_step *state;
    struct kernel_source source;
    TRY(analyse(&r, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (r.total == 0 || r.heads == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    kernel_source_init(&source, &step->region);
    emit(&source, &r);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "rope/rope.cuh", "rope", arena));
    kernel->grid[0] =
        (uint32_t)min64(divide_up(r.total, THREADS), (int64_t)device->cuda.multiprocessors * BLOCKS_PER_MULTIPROCESSOR);
    kernel->grid[1] = (uint32_t)divide_up(r.heads, r.heads_each);
    kernel->grid[2] = 1;
    kernel->block = THREADS;
    return arena_print(arena, &step->detail, "%lld pairs, %s, %lld head%s per thread", (long long)r.pairs,
                       r.op->is_interleaved ? "interleaved" : "halves", (long long)r.heads_each, plural(r.heads_each));
}

const struct family cuda_rope = {
    .name = "cuda.rope",
    .doc = "rotary position embedding and its gradient",
    .accepts = accepts,
    .build = build,
};
