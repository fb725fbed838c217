/* SPDX-License-Identifier: Apache-2.0 */
/* CTC family: losses of sequences without alignment, and their gradients. The device files in this folder compute:
     forward     alpha.cuh, a block per sequence
     backward    beta.cuh, a block per sequence, then gradient.cuh, a block per step of a sequence */
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "graph/ops/ctc_loss.h"

#include <stdio.h>

enum {
    THREADS_MIN = 64,
    THREADS_MOST = 1024,
    GRADIENT_THREADS = 128,
    ROW = 2048,       /* states of a step in shared memory; longer ones are in scratch */
    GRID_MAX = 65535, /* blocks; they step through the others */
    SCRATCH_UNIT = 64,
};

/* One step of a block: an exchange through shared memory, exponentials and a logarithm. */
static const double STEP_SECONDS = 0.4e-6;

struct ctc {
    const struct ctc_loss_op *op;
    const struct region *region;
    bool is_backward, is_double, is_long, has_alpha;
    int64_t steps, batch, classes, labels, states, threads;
    /* Scratch: two rows of states per sequence if is_long; of backward, probabilities, likelihoods and links. */
    int64_t rows_bytes, probabilities_bytes, likelihoods_bytes, links_bytes;
};

/* ---- Supported operations ---------------------------------------------------------------------------------------- */

static int64_t whole(int64_t bytes) { return divide_up(bytes, SCRATCH_UNIT) * SCRATCH_UNIT; }

static bool is_stored(const struct region *region, const struct tensor *tensor) {
    return tensor && !value_is_dead(&region->graph->values[graph_find_value(region->graph, tensor)]);
}

static bool needs_double(const struct ctc_loss_op *op) {
    const struct tensor *tensors[] = {op->log_probs, op->loss, op->log_alpha, op->dloss, op->dlog_probs};
    bool found = op->math == WEFT_DATA_DOUBLE;
    for (int i = 0; i < 5; i++)
        found = found || (tensors[i] && tensors[i]->type == WEFT_DATA_DOUBLE);
    return found;
}

static weftStatus_t analyse(struct ctc *c, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &ctc_loss_op && op_of(op) != &ctc_loss_bwd_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a CTC loss.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    *c = (struct ctc){.op = (const struct ctc_loss_op *)op, .region = region};
    const struct tensor *log_probs = c->op->log_probs;
    c->is_backward = op_of(op) == &ctc_loss_bwd_op;
    c->is_double = needs_double(c->op);
    c->has_alpha = !c->is_backward && is_stored(region, c->op->log_alpha);
    c->steps = log_probs->dims.at[CTC_TIME], c->batch = log_probs->dims.at[CTC_BATCH];
    c->classes = log_probs->dims.at[CTC_CLASS];
    c->labels = ctc_labels(c->op), c->states = ctc_states(c->op);
    c->is_long = c->states > ROW;
    for (c->threads = THREADS_MIN; c->threads < THREADS_MOST && c->threads < c->states;)
        c->threads *= 2;
    int64_t number = c->is_double ? 8 : 4;
    c->rows_bytes = c->is_long ? whole(2 * c->batch * c->states * number) : 0;
    if (c->is_backward) {
        c->probabilities_bytes = whole(c->batch * c->steps * c->states * number);
        c->likelihoods_bytes = whole(c->batch * number);
        c->links_bytes = whole(2 * c->batch * c->labels * 4);
    }
    return WEFT_STATUS_SUCCESS;
}

/* The steps of a sequence follow each other; sequences share the device. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct ctc c = {0};
    TRY(analyse(&c, region));
    int64_t rounds = divide_up(c.batch, max64(device->cuda.multiprocessors, 1)) * divide_up(c.states, c.threads);
    double bytes = (c.is_backward ? 2 : 1) * (double)tensor_bytes(c.op->log_probs);
    offer->seconds = PRICE_LAUNCH_SECONDS * (c.is_backward ? 2 : 1) + (double)c.steps * (double)rounds * STEP_SECONDS +
                     price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

struct name {
    char text[32];
};

static struct name named(const char *name, const char *suffix) {
    struct name made;
    snprintf(made.text, sizeof made.text, "%s_%s", name, suffix);
    return made;
}

/* Emits the type, the pointer and the strides of a tensor, with a suffix for each dimension. */
static void emit_tensor(struct kernel_source *source, const struct tensor *tensor, const char *name,
                        const char *const *suffixes) {
    emit_type(source, named(name, "t").text, (weftDataType_t)tensor->type);
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(source->graph, tensor), 0, name);
    for (int d = 0; d < tensor->dims.count; d++)
        emit_number(source, tensor->strides.at[d], named(name, suffixes[d]).text);
}

static const char *const per_sequence[] = {"n"};
static const char *const per_class[] = {"t0", "n", "c"};
static const char *const per_state[] = {"n", "t0", "s"};

/* Emits the declarations that sequence.cuh uses. */
static void emit_operands(struct kernel_source *source, const struct ctc *c, int64_t threads) {
    static const char *const padded[] = {"n", "s"}, *const concatenated[] = {"s"};
    bool is_concatenated = ctc_is_concatenated(c->op);
    text_add(&source->constants, "#include \"core/reduce.cuh\"\nusing real = %s;\n", c->is_double ? "double" : "float");
    emit_constant(source, "THREADS", threads);
    emit_constant(source, "ROW", ROW);
    emit_constant(source, "IS_LONG", c->is_long);
    emit_constant(source, "IS_CONCATENATED", is_concatenated);
    emit_constant(source, "ZERO_INFINITY", c->op->zero_infinity);
    emit_number(source, c->steps, "steps");
    emit_number(source, c->batch, "batch");
    emit_number(source, c->classes, "classes");
    emit_number(source, c->labels, "labels");
    emit_number(source, c->states, "states");
    emit_number(source, c->op->blank, "blank");
    emit_tensor(source, c->op->log_probs, "log_probs", per_class);
    emit_tensor(source, c->op->targets, "targets", is_concatenated ? concatenated : padded);
    if (is_concatenated)
        emit_number(source, 0, "targets_n");
    emit_number(source, c->op->targets->dims.at[0], "targets_count");
    emit_tensor(source, c->op->input_lengths, "input_lengths", per_sequence);
    emit_tensor(source, c->op->target_lengths, "target_lengths", per_sequence);
}

static void emit_scratches(struct kernel_source *source, const struct ctc *c) {
    const char *type = c->is_double ? "double" : "float";
    int64_t at = 0;
    emit_scratch(source, type, at, "rows");
    emit_scratch(source, type, at += c->rows_bytes, "probabilities");
    emit_scratch(source, type, at += c->probabilities_bytes, "likelihoods");
    emit_scratch(source, "i32", at + c->likelihoods_bytes, "links");
}

static weftStatus_t add_kernel(struct cuda_step *state, struct kernel_source *source, const char *file,
                               const char *entry, int64_t blocks, int64_t threads, struct arena *arena) {
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(source, kernel, file, entry, arena));
    kernel->grid[0] = (uint32_t)min64(blocks, GRID_MAX);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)threads;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_forward(struct cuda_step *state, const struct ctc *c, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    emit_operands(&source, c, c->threads);
    emit_constant(&source, "HAS_ALPHA", c->has_alpha);
    emit_tensor(&source, c->op->loss, "loss", per_sequence);
    if (c->has_alpha)
        emit_tensor(&source, c->op->log_alpha, "log_alpha", per_state);
    emit_scratches(&source, c);
    return add_kernel(state, &source, "ctc/alpha.cuh", "ctc_alpha", c->batch, c->threads, arena);
}

static weftStatus_t add_backward(struct cuda_step *state, const struct ctc *c, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    emit_operands(&source, c, c->threads);
    emit_tensor(&source, c->op->log_alpha, "log_alpha", per_state);
    emit_scratches(&source, c);
    TRY(add_kernel(state, &source, "ctc/beta.cuh", "ctc_beta", c->batch, c->threads, arena));
    kernel_source_init(&source, c->region);
    emit_operands(&source, c, GRADIENT_THREADS);
    emit_tensor(&source, c->op->dloss, "dloss", per_sequence);
    emit_tensor(&source, c->op->dlog_probs, "dlog_probs", per_class);
    emit_scratches(&source, c);
    return add_kernel(state, &source, "ctc/gradient.cuh", "ctc_gradient", c->batch * c->steps, GRADIENT_THREADS, arena);
}

/* ---- Building steps ---------------------------------------------------------------------------------------------- */

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct ctc c;
    struct cuda_step *state;
    TRY(analyse(&c, &step->region));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (c.batch == 0 || (c.is_backward && c.steps == 0))
        return arena_print(arena, &step->detail, "nothing to compute");
    step->workspace_bytes = c.rows_bytes + c.probabilities_bytes + c.likelihoods_bytes + c.links_bytes;
    TRY(c.is_backward ? add_backward(state, &c, arena) : add_forward(state, &c, arena));
    return arena_print(arena, &step->detail, "%lld states, %lld threads per sequence%s", (long long)c.states,
                       (long long)c.threads, c.is_long ? ", in scratch memory" : "");
}

const struct family cuda_ctc = {
    .name = "cuda.ctc",
    .doc = "connectionist temporal classification of sequences, and its gradient",
    .accepts = accepts,
    .build = build,
};
