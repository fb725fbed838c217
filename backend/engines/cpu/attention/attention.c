/* SPDX-License-Identifier: Apache-2.0 */
/* The attention family: forward and backward in float, without storing scores in memory. This file checks which
   operations are supported, predicts their time and builds steps; forward.c and backward.c run them. */
#include "engines/cpu/attention/attention.h"
#include "engines/cpu/attention/modifier.h"

#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"

#include <string.h>

/* Per core, for each column of the kernel; includes the softmax between the products. BYTES: memory bandwidth shared by
   all cores. */
static const double FLOPS_PER_COLUMN = 4e9, BYTES_PER_SECOND = 16e9, START_SECONDS = 1e-6;
/* Speedup of bf16 products, where the softmax takes half of the time. Measured at depth 64. */
static const double PACKED_SPEED = 3;

/* ---- Supported operations ---------------------------------------------------------------------------------------- */

static const struct sdpa_fwd_op *forward_at(const struct descriptor *op) {
    return op->schema->op == &sdpa_fwd_op ? (const struct sdpa_fwd_op *)op : NULL;
}

static const struct sdpa_bwd_op *backward_at(const struct descriptor *op) {
    return op->schema->op == &sdpa_bwd_op ? (const struct sdpa_bwd_op *)op : NULL;
}

/* Float represents every floating-point type except DOUBLE. */
static weftStatus_t check_operand(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    weftDataType_t type = (weftDataType_t)tensor->type;
    TRY(tensor_check_plain(tensor, op));
    if (!dtype_of(type) || (type_is_wide(type) && dtype_is_float(type)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: %s is %s, which only the reference computes, in double. Use FLOAT, HALF or BFLOAT16.",
             descriptor_label(op), row->key, dtype_of(type) ? dtype_of(type)->name : "of a type without storage");
    if (tensor->reordering != WEFT_TENSOR_REORDERING_NONE || (row->role == ROLE_OUTPUT && dtype_of(type)->bits < 8))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s has scales in tiled layout, or is a result with elements narrower than 8 bits. Only the reference "
             "supports these.",
             descriptor_label(op), row->key);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t refuse(const struct descriptor *op, const struct tensor *const *absent, int count) {
    for (int i = 0; i < count; i++)
        if (absent[i])
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s: %s is set, but only the reference supports scales, amax and the dropout mask as a result. Leave "
                 "it unset.",
                 descriptor_label(op), descriptor_label(&absent[i]->base));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_forward(const struct sdpa_fwd_op *op) {
    const struct tensor *absent[] = {op->rng_dump, op->descale_s, op->scale_s, op->scale_o, op->amax_s, op->amax_o};
    return refuse(&op->base, absent, (int)(sizeof absent / sizeof *absent));
}

static weftStatus_t check_backward(const struct sdpa_bwd_op *op) {
    const struct tensor *absent[] = {op->q_t,        op->k_t,       op->do_t,       op->do_f16,  op->descale_o,
                                     op->descale_do, op->descale_s, op->descale_dp, op->scale_s, op->scale_dp,
                                     op->scale_dq,   op->scale_dk,  op->scale_dv,   op->amax_dq, op->amax_dk,
                                     op->amax_dv,    op->amax_dp};
    if (op->a.modifier.graph)
        TRY(modifier_check_gradient(&op->a.modifier, &op->base));
    if (op->a.modifier.gradients.count > 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s requests gradients of inputs of its score modifier, which only the reference computes.",
             descriptor_label(&op->base));
    return refuse(&op->base, absent, (int)(sizeof absent / sizeof *absent));
}

/* ---- Score modifiers --------------------------------------------------------------------------------------------- */

struct modifier {
    struct program program;
    struct rows_columns walk;
};

/* Sets the access that stores the modified scores: they are stored in the tile, with a key pitch of PANEL. */
static weftStatus_t set_result_access(struct program *program, const struct attention *a, const struct descriptor *op) {
    const struct tensor *result = a->modifier.graph->values[a->modifier.output].tensor;
    if (result->type != WEFT_DATA_FLOAT)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: the result of its score modifier has type %s. Make it FLOAT.",
             descriptor_label(op), dtype_of((weftDataType_t)result->type)->name);
    for (int i = 0; i < program->access_count; i++)
        if (program->accesses[i].is_store)
            memcpy(program->accesses[i].strides, (const int64_t[]){0, 0, 1, PANEL}, 4 * sizeof(int64_t));
    return WEFT_STATUS_SUCCESS;
}

/* Compiles a modifier's operations to a program that starts from a tile of scores and ends with one, because the result
   always has a reader in the modifier's graph. The operations of its gradient are left out. */
static weftStatus_t compile_modifier(struct modifier *modifier, const struct attention *a,
                                     const struct descriptor *op) {
    const struct score_modifier *m = &a->modifier;
    const int reader[] = {-1};
    struct value values[SCORE_MODIFIER_VALUES_MAX];
    bool needed[SCORE_MODIFIER_VALUES_MAX];
    int nodes[SCORE_MODIFIER_VALUES_MAX];
    struct graph graph = *m->graph;
    struct region region = {.graph = &graph, .nodes = nodes};
    const struct attention_sizes s = attention_sizes_of(a);
    const struct tensor space = {.dims = {4, {s.batches, s.heads, s.rows, s.keys}}};
    memcpy(values, graph.values, (size_t)graph.value_count * sizeof *values);
    values[m->output].readers = 1, values[m->output].read_by = reader;
    graph.values = values;
    score_modifier_mark_needed(m, m->output, needed);
    for (int i = 0; i < graph.node_count; i++)
        for (int k = 0; k < graph.nodes[i].operand_count; k++)
            if (graph.nodes[i].is_output[k] && needed[graph.nodes[i].operands[k]])
                nodes[region.count++] = i;
    if (m->output == m->input || region.count == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: its score modifier returns its input unchanged. Leave it unset.", descriptor_label(op));
    TRY(program_compile(&modifier->program, &region, &space, &(struct given){.value = m->input, .alpha = 1}));
    TRY(set_result_access(&modifier->program, a, op));
    const struct axis axes[] = {{0, s.batches, 0, 1}, {1, s.heads, 0, 1}, {3, s.keys, 0, 1}, {2, s.rows, 0, 1}};
    rows_columns_plan(&modifier->walk, &modifier->program, axes, 4, false);
    return WEFT_STATUS_SUCCESS;
}

/* ---- The family -------------------------------------------------------------------------------------------------- */

static weftStatus_t check(const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    const struct attention *a = attention_of(op);
    if (region->count != 1 || !a)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: only a single attention operation is supported, with nothing fused.", descriptor_label(op));
    if (a->math == WEFT_DATA_DOUBLE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: compute_data_type is DOUBLE. Set it to FLOAT.",
             descriptor_label(op));
    TRY(op_each_operand(op, check_operand, (void *)op));
    const struct tensor *absent[] = {a->descale_q, a->descale_k, a->descale_v};
    TRY(refuse(op, absent, 3));
    struct modifier modifier;
    if (a->modifier.graph)
        TRY(compile_modifier(&modifier, a, op));
    return forward_at(op) ? check_forward(forward_at(op)) : check_backward(backward_at(op));
}

/* The maximum of arithmetic on all threads and memory traffic. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    TRY(check(region));
    const struct descriptor *op = region_node(region, 0)->op;
    const struct attention *a = attention_of(op);
    int threads = device->threads < 1 ? 1 : device->threads;
    const struct attention_sizes sizes = attention_sizes_of(a);
    double speed = forward_at(op) && attention_is_packed(&sizes, forward_at(op)) ? PACKED_SPEED : 1;
    double computing = op_flops(op) / (FLOPS_PER_COLUMN * speed * small_kernel(0)->columns * threads);
    double bytes = (double)tensor_own_bytes(a->q) + (double)tensor_own_bytes(a->k) + (double)tensor_own_bytes(a->v);
    double moving = (forward_at(op) ? 1 : 2) * bytes / BYTES_PER_SECOND;
    offer->seconds = START_SECONDS + (computing > moving ? computing : moving);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    const struct descriptor *op = region_node(&step->region, 0)->op;
    const struct attention *a = attention_of(op);
    struct attention_plan *plan;
    TRY(arena_alloc(arena, &plan, sizeof *plan));
    *plan =
        (struct attention_plan){.sizes = attention_sizes_of(a), .kernel = small_kernel(0), .threads = threads_count()};
    if (a->modifier.graph) {
        struct modifier *modifier;
        TRY(arena_alloc(arena, &modifier, sizeof *modifier));
        TRY(compile_modifier(modifier, a, op));
        plan->modifier = &modifier->program, plan->walk = &modifier->walk;
    }
    if (forward_at(op))
        attention_plan_forward(plan, forward_at(op));
    else
        attention_plan_backward(plan, backward_at(op));
    /* Plus LINE, because the workspace may have any alignment. */
    step->workspace_bytes = LINE + plan->shared_bytes + plan->threads * plan->thread_bytes;
    TRY(threads_start());
    step->state = plan;
    return arena_print(arena, &step->detail,
                       "%s, tiles of %d keys x %d queries, tasks of %lld tiles, keys in %lld part%s",
                       plan->is_packed ? "amx-bf16 32x32" : plan->kernel->name, KEY_TILE, PANEL,
                       (long long)plan->panels, (long long)plan->splits, plural(plan->splits));
}

/* Resolves the addresses of a modifier's operands. */
static void bind_modifier(struct scores *scores, const struct attention_plan *plan, void **values) {
    const struct graph *graph = scores->a->modifier.graph;
    for (int i = 0; graph && i < graph->value_count; i++)
        values[i] = graph->values[i].producer < 0 ? view_of(&scores->bindings, graph->values[i].tensor).data : NULL;
    scores->modifier = plan->modifier, scores->walk = plan->walk;
    scores->modifier_values = values;
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    const struct attention_plan *plan = step->state;
    const struct descriptor *op = region_node(&step->region, 0)->op;
    struct bindings bindings = {.graph = step->region.graph, .values = values};
    struct attention_run execution = {.plan = plan,
                                      .scores = scores_of(attention_of(op), &plan->sizes, &bindings),
                                      .workspace = (char *)workspace + (-(uintptr_t)workspace & (LINE - 1))};
    void *modifier_values[SCORE_MODIFIER_VALUES_MAX];
    bind_modifier(&execution.scores, plan, modifier_values);
    if (forward_at(op))
        attention_forward(&execution, forward_at(op));
    else
        attention_backward(&execution, backward_at(op));
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_attention = {
    .name = "cpu.attention",
    .doc = "attention and its gradients in tiles, without storing scores in memory",
    .accepts = accepts,
    .build = build,
    .run = run,
};
