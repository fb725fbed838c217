/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_bwd on Hopper: three kernels. backward_rows_sm90.cuh makes the statistics of queries, backward_sm90.cuh all
   gradients, those of queries as float sums, and backward_queries_sm90.cuh rows of these sums. */
#include "base/number.h"
#include "engines/cuda/attention/hopper/hopper.h"
#include "engines/cuda/families.h"

enum {
    BLOCK_KEYS = 128,
    STAGES = 3,
    DS_STAGES = 2,
    THREADS = 384,
    ROWS_THREADS = 256,
    QUERIES_THREADS = 128,
    PART_BYTES = 64 * 64 * 4, /* of dQ */
    BLOCKS_PER_SET = 128,     /* about one for each multiprocessor */
    DEPTH_MOST = 128,
};

static const double PRODUCTS_PER_CLOCK = 2048, EFFICIENCY = 0.55, START_SECONDS = 3e-6;

/* By the padded depth. Registers: what the two consumer warpgroups, and the one that loads and makes dQ, move to. */
static const struct backward_tile {
    int head, queries, consumer_registers, producer_registers, parts_staged;
} tiles[] = {{64, 128, 216, 72, 1}, {128, 64, 208, 88, 2}};

struct backward {
    const struct cuda_attention *c;
    const struct sdpa_bwd_op *op;
    const struct backward_tile *tile;
    int64_t q_blocks, kv_blocks, tiles; /* tiles: blocks of queries of all heads */
    int64_t heads_per_set;
};

/* ---- Accepting ---- */

static weftStatus_t refuse(const struct cuda_attention *c, const char *what) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: %s; the portable attention family takes it.",
         descriptor_label(region_node(c->region, 0)->op), what);
}

static weftStatus_t check_features(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    if (op->is_deterministic)
        return refuse(c, "two runs shall agree to the bit, and here blocks add to dQ in any order");
    if (c->a->bias)
        return refuse(c, "Hopper's backward kernel adds no bias");
    if (c->a->alibi)
        return refuse(c, "Hopper's backward kernel adds no ALiBi slopes");
    if (c->a->dropout_probability > 0)
        return refuse(c, "Hopper's backward kernel drops no weights");
    if (attention_wants(c, op->dsink))
        return refuse(c, "Hopper's backward kernel makes no gradient of sinks");
    if (!attention_wants(c, op->dq) || !attention_wants(c, op->dk) || !attention_wants(c, op->dv))
        return refuse(c, "Hopper's backward kernel makes dQ, dK and dV together, and not all are wanted");
    if (c->key_heads != c->value_heads)
        return refuse(c, "Hopper's backward kernel wants as many heads of k as of v");
    if (c->depth > DEPTH_MOST || c->value_depth > DEPTH_MOST)
        return refuse(c, "Hopper's backward kernel has heads of up to 128");
    if (!c->lines || !c->keys || !c->depth || !c->value_depth)
        return refuse(c, "there is nothing to multiply");
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_all(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *boxed[] = {c->a->q, c->a->k, c->a->v, op->o, op->d_o, op->dq, op->dk, op->dv};
    TRY(check_features(c));
    for (size_t i = 0; i < sizeof boxed / sizeof *boxed; i++)
        TRY(attention_hopper_check_boxed(c, boxed[i]));
    if (op->stats->type != WEFT_DATA_FLOAT)
        return refuse(c, "Hopper's backward kernel reads statistics as float");
    return WEFT_STATUS_SUCCESS;
}

/* ---- Planning ---- */

static struct backward plan_backward(const struct cuda_attention *c) {
    struct backward b = {.c = c, .op = c->backward, .tile = tiles};
    while (b.tile->head < c->depth || b.tile->head < c->value_depth)
        b.tile++;
    b.q_blocks = divide_up(c->queries, b.tile->queries);
    b.kv_blocks = divide_up(c->keys, BLOCK_KEYS);
    b.tiles = c->batches * c->heads * b.q_blocks;
    bool has_bounds = c->a->right_bound < c->keys || c->a->left_bound < c->queries;
    b.heads_per_set = has_bounds && b.kv_blocks < BLOCKS_PER_SET ? BLOCKS_PER_SET / b.kv_blocks : 1;
    return b;
}

static int64_t shared_bytes(const struct backward_tile *t) {
    int64_t row = t->head * 2, queries = t->queries * row, statistics = 2 * t->queries * 4;
    int64_t barriers = 8 * (2 + 4 * STAGES + 2 * DS_STAGES);
    return 2 * BLOCK_KEYS * row + STAGES * (2 * queries + statistics) + DS_STAGES * BLOCK_KEYS * t->queries * 2 +
           t->parts_staged * PART_BYTES + barriers;
}

static int64_t statistics_bytes(const struct backward *b) { return b->tiles * 2 * b->tile->queries * 4; }
static int64_t sums_bytes(const struct backward *b) { return b->tiles * b->tile->queries * b->tile->head * 4; }

/* ---- Printing ---- */

static void print_workspace(struct kernel_print *print, const struct backward *b) {
    print_scratch(print, "float", 0, "statistics");
    print_scratch(print, "float", statistics_bytes(b), "dq_sum");
}

static void print_shared(struct kernel_print *print, const struct backward *b) {
    attention_hopper_print_scores(print, b->c);
    print_type(print, "in_t", (weftDataType_t)b->c->a->q->type);
    print_constant(print, "HEAD", b->tile->head);
    print_constant(print, "BLOCK_Q", b->tile->queries);
    print_workspace(print, b);
}

static weftStatus_t build_rows(const struct backward *b, struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_print print;
    kernel_print_init(&print, b->c->graph);
    print_shared(&print, b);
    print_constant(&print, "VALUE_HEAD", b->tile->head);
    print_constant(&print, "THREADS", ROWS_THREADS);
    print_divisor(&print, b->q_blocks, "q_blocks");
    print_divisor(&print, b->c->heads, "heads");
    print_number(&print, b->c->value_depth, "value_depth");
    attention_print_tensor(&print, b->c, b->op->o, "o", NULL);
    attention_print_tensor(&print, b->c, b->op->d_o, "d_o", NULL);
    attention_print_tensor(&print, b->c, b->op->stats, "stats", NULL);
    TRY(kernel_finish(&print, kernel, "attention/hopper/backward_rows_sm90.cuh", "attention_backward_rows_sm90",
                      arena));
    return attention_grid(kernel, b->c, b->tiles, ROWS_THREADS / 32);
}

static weftStatus_t build_queries(const struct backward *b, struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_print print;
    kernel_print_init(&print, b->c->graph);
    text_add(&print.constants, "#include \"core/ptx_sm90.cuh\"\n");
    print_shared(&print, b);
    print_divisor(&print, b->q_blocks, "q_blocks");
    print_divisor(&print, b->c->heads, "heads");
    print_number(&print, b->c->depth, "depth");
    attention_print_tensor(&print, b->c, b->op->dq, "dq", NULL);
    TRY(kernel_finish(&print, kernel, "attention/hopper/backward_queries_sm90.cuh", "attention_backward_queries_sm90",
                      arena));
    return attention_grid(kernel, b->c, b->tiles, QUERIES_THREADS / 32);
}

static void print_maps(struct kernel_print *print, const struct backward *b) {
    const struct attention *a = b->c->a;
    int queries = b->tile->queries, half = BLOCK_KEYS / 2;
    attention_hopper_print_map(print, b->c, a->q, queries, "q_map");
    attention_hopper_print_map(print, b->c, a->k, BLOCK_KEYS, "k_map");
    attention_hopper_print_map(print, b->c, a->v, BLOCK_KEYS, "v_map");
    attention_hopper_print_map(print, b->c, b->op->d_o, queries, "d_o_map");
    attention_hopper_print_map(print, b->c, b->op->dk, half, "dk_map");
    attention_hopper_print_map(print, b->c, b->op->dv, half, "dv_map");
}

static void print_products(struct text *code, const struct backward *b) {
    const char *type = cuda_type_name((weftDataType_t)b->c->a->q->type);
    struct attention_product scores = {"multiply_scores", type, b->tile->queries, .adds = true};
    struct attention_product keys = {"multiply_keys", type,        b->tile->head, .a = PRODUCT_A_REGISTERS,
                                     .b_is_mn = true, .adds = true};
    struct attention_product queries = {"multiply_queries", type, 64, .a = PRODUCT_A_MN, .b_is_mn = true, .adds = true};
    attention_hopper_print_product(code, &scores);
    attention_hopper_print_product(code, &keys);
    attention_hopper_print_product(code, &queries);
    scores.adds = queries.adds = false;
    scores.name = "multiply_scores_first", queries.name = "multiply_queries_first";
    scores.is_fresh = true;
    attention_hopper_print_product(code, &scores);
    attention_hopper_print_product(code, &queries);
}

static weftStatus_t build_main(const struct backward *b, struct cuda_kernel *kernel, struct arena *arena) {
    const struct cuda_attention *c = b->c;
    struct kernel_print print;
    kernel_print_init(&print, c->graph);
    print_maps(&print, b);
    print_shared(&print, b);
    print_constant(&print, "IS_BF16", c->a->q->type == WEFT_DATA_BFLOAT16);
    print_constant(&print, "BLOCK_K", BLOCK_KEYS);
    print_constant(&print, "STAGES", STAGES);
    print_constant(&print, "CONSUMER_REGISTERS", b->tile->consumer_registers);
    print_constant(&print, "PRODUCER_REGISTERS", b->tile->producer_registers);
    print_constant(&print, "SHARED_BYTES", shared_bytes(b->tile));
    print_number(&print, c->heads, "heads");
    print_number(&print, c->key_heads, "key_heads");
    print_number(&print, c->heads / c->key_heads, "group");
    print_number(&print, b->q_blocks, "q_blocks");
    print_number(&print, b->kv_blocks, "kv_blocks");
    print_number(&print, b->heads_per_set, "heads_per_set");
    print_products(&print.code, b);
    TRY(kernel_finish(&print, kernel, "attention/hopper/backward_sm90.cuh", "attention_backward_sm90", arena));
    kernel->shared_bytes = (uint32_t)shared_bytes(b->tile);
    return attention_grid(kernel, c, c->batches * c->key_heads * b->kv_blocks, THREADS / 32);
}

/* ---- The family ---- */

static weftStatus_t analyse(struct cuda_attention *c, const struct region *region, const struct device *device) {
    TRY(attention_hopper_check_device(device));
    TRY(attention_analyse(c, region, device));
    if (!c->backward)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: this family serves sdpa_bwd.",
             descriptor_label(region_node(region, 0)->op));
    return check_all(c);
}

static double predict(const struct cuda_attention *c) {
    const struct cuda_properties *cuda = &c->device->cuda;
    double rate = PRODUCTS_PER_CLOCK * 2.0 * cuda->clock_khz * 1e3 * cuda->multiprocessors * EFFICIENCY;
    double sums = 3.0 * 4 * (double)(c->lines * c->depth); /* cleared, added to and read: most of what is moved */
    return START_SECONDS + op_flops(region_node(c->region, 0)->op) / rate + sums / (double)cuda->bandwidth;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct cuda_attention c;
    TRY(analyse(&c, region, device));
    *seconds = predict(&c);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct cuda_attention c;
    struct cuda_step *state;
    TRY(analyse(&c, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    struct backward b = plan_backward(&c);
    TRY(build_rows(&b, &state->kernels[state->count++], arena));
    TRY(build_main(&b, &state->kernels[state->count++], arena));
    TRY(build_queries(&b, &state->kernels[state->count++], arena));
    step->workspace_bytes = statistics_bytes(&b) + sums_bytes(&b);
    return arena_print(arena, &step->detail, "wgmma of %s, heads of %d, %d keys x %d queries",
                       cuda_type_name((weftDataType_t)c.a->q->type), b.tile->head, BLOCK_KEYS, b.tile->queries);
}

static bool reorders(const struct graph *graph, int node) { return op_of(graph->nodes[node].op) == &sdpa_bwd_op; }

const struct family cuda_attention_hopper_unordered = {
    .name = "cuda.attention_hopper_unordered",
    .doc = "gradients of attention on Hopper, those of queries summed by blocks in any order",
    .accepts = accepts,
    .build = build,
    .load = cuda_load,
    .run = cuda_run,
    .release = cuda_release,
    .reorders = reorders,
};
