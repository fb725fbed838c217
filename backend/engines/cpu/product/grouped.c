/* SPDX-License-Identifier: Apache-2.0 */
/* The grouped family: mixture-of-experts products and their weight gradients, with fused pointwise operations, as one
   packed product per expert. The number of rows of an expert is read at run time. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"
#include "engines/cpu/product/contraction.h"
#include "graph/ops/moe.h"

#include <stdatomic.h>
#include <string.h>

/* FLOPS_PER_COLUMN is a rate per thread; BYTES_PER_SECOND is the rate of all threads. */
static const double FLOPS_PER_COLUMN = 3e9, BYTES_PER_SECOND = 16e9, START_SECONDS = 3e-6;

enum { FEW_TOKENS = 64 }; /* average per expert */

/* A tensor of which an expert has some rows or one matrix; strides in elements. */
struct part {
    int value;
    weftDataType_t type;
    int64_t experts, rows, columns; /* strides */
};

struct grouped {
    struct program program;
    struct rows_columns walk; /* its rows are those of the result, for a gradient over all experts */
    const struct gemm_kernel *kernel;
    gemm_pack *pack_a, *pack_b;
    int threads;
    int64_t thread_bytes; /* workspace per thread, if each thread computes products of its own */
    bool is_backward;
    int32_t mode;
    /* rows: shared by the experts; m: used by a gradient; k: used by a product */
    int64_t top_k, experts, tokens, rows, m, n, k;
    int64_t result_rows, left_out; /* offsets */
    struct part a, b, first, index, place;
};

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static struct part part_of(const struct graph *graph, const struct tensor *tensor) {
    struct part part = {.value = -1};
    if (tensor)
        part = (struct part){graph_find_value(graph, tensor), (weftDataType_t)tensor->type, tensor->strides.at[0],
                             tensor->strides.at[1], tensor->strides.at[2]};
    return part;
}

static void describe_forward(struct grouped *g, const struct moe_op *op, const struct graph *graph) {
    g->mode = op->mode;
    g->top_k = op->top_k;
    g->tokens = op->token->dims.at[1];
    g->rows = moe_rows(op);
    g->n = op->weight->dims.at[2];
    g->k = op->weight->dims.at[1];
    g->experts = op->weight->dims.at[0];
    g->result_rows = op->output->dims.at[1];
    g->a = part_of(graph, op->token);
    g->b = part_of(graph, op->weight);
    g->first = part_of(graph, op->first_token_offset);
    g->left_out = moe_left_out(op->first_token_offset, g->experts);
    g->index = part_of(graph, op->token_index);
    g->place = part_of(graph, op->token_ks);
}

static void describe_backward(struct grouped *g, const struct moe_bwd_op *op, const struct graph *graph) {
    g->is_backward = true;
    g->rows = g->tokens = g->k = op->token->dims.at[1];
    g->m = op->token->dims.at[2];
    g->n = op->doutput->dims.at[2];
    g->experts = op->dweight->dims.at[0];
    g->a = part_of(graph, op->token);
    g->b = part_of(graph, op->doutput);
    g->first = part_of(graph, op->first_token_offset);
    g->left_out = moe_left_out(op->first_token_offset, g->experts);
}

/* The operands of the product for both kinds of operations, and the result. */
static struct product product_of(const struct node *node, const struct tensor **result) {
    const struct moe_op *op = (const struct moe_op *)node->op;
    const struct moe_bwd_op *bwd = (const struct moe_bwd_op *)node->op;
    bool is_backward = op_of(node->op) == &moe_bwd_op;
    *result = is_backward ? bwd->dweight : op->output;
    return (struct product){.a = is_backward ? bwd->token : op->token,
                            .b = is_backward ? bwd->doutput : op->weight,
                            .math = is_backward ? moe_bwd_math(bwd) : moe_math(op),
                            .alpha = 1,
                            .depth = (double)(is_backward ? bwd->token->dims.at[1] : op->weight->dims.at[1]),
                            .rows = is_backward ? bwd->token->dims.at[2] : moe_rows(op),
                            .columns = (*result)->dims.at[2]};
}

/* Operands must be in memory, in whole bytes, because an expert's rows may start anywhere. */
static weftStatus_t check_operands(const struct region *region, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        const struct tensor *tensor = region->graph->values[node->operands[i]].tensor;
        TRY(tensor_check_plain(tensor, node->op));
        if (!node->is_output[i] && region_makes(region, node->operands[i]))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: it reads %s from memory", descriptor_label(node->op),
                 descriptor_label(&tensor->base));
        const struct dtype *type = dtype_of((weftDataType_t)tensor->type);
        if (!type || (!node->is_output[i] && type->bits < 8))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: elements of %s are smaller than a byte",
                 descriptor_label(node->op), descriptor_label(&tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t find_node(const struct region *region, const struct node **out) {
    *out = NULL;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        bool is_grouped = op_of(node->op) == &moe_op || op_of(node->op) == &moe_bwd_op;
        if (!node_is_pointwise(node) && (!is_grouped || *out))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s is not a grouped product followed by pointwise operations", descriptor_label(node->op));
        *out = is_grouped ? node : *out;
    }
    if (!*out)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the region has no grouped product for it to follow",
             descriptor_label(region_node(region, 0)->op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t compile(struct program *program, const struct region *region, const struct node **node,
                            const struct gemm_kernel **kernel) {
    const struct tensor *result;
    TRY(find_node(region, node));
    TRY(check_operands(region, *node));
    struct product product = product_of(*node, &result);
    TRY(product_check_exact((*node)->op, &product));
    *kernel = product_kernel(&product);
    struct given given = {
        .value = graph_find_value(region->graph, result), .is_wide = product_is_wide(&product), .alpha = 1};
    return program_compile(program, region, result, &given);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct program program;
    const struct node *node;
    const struct gemm_kernel *kernel;
    const struct tensor *result;
    TRY(compile(&program, region, &node, &kernel));
    struct product product = product_of(node, &result);
    int threads = program.shares_bytes || device->threads < 1 ? 1 : device->threads;
    double computing = op_flops(node->op) / kernel->speed / (FLOPS_PER_COLUMN * kernel->columns);
    computing += (double)tensor_elements(result) * program.nanoseconds * 1e-9;
    double bytes = program.bytes + (double)tensor_own_bytes(product.a) + (double)tensor_own_bytes(product.b);
    double moving = bytes / BYTES_PER_SECOND;
    offer->seconds = START_SECONDS + (computing / threads > moving ? computing / threads : moving);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* True if writing gradients takes longer than computing them. Each thread then processes whole experts, so that threads
   write to distant pages: new memory of the process is mapped page by page, and threads that fault adjacent pages wait
   for each other. */
static bool splits_by_expert(const struct grouped *g) {
    return g->is_backward && g->threads > 1 && g->experts >= g->threads && g->rows <= FEW_TOKENS * g->experts;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct grouped *g;
    struct axis axes[3];
    const struct node *node;
    const struct tensor *result;
    TRY(arena_alloc(arena, &g, sizeof *g));
    TRY(compile(&g->program, &step->region, &node, &g->kernel));
    product_of(node, &result);
    if (op_of(node->op) == &moe_bwd_op)
        describe_backward(g, (const struct moe_bwd_op *)node->op, step->region.graph);
    else
        describe_forward(g, (const struct moe_op *)node->op, step->region.graph);
    for (int i = 0; i < 3; i++)
        axes[i] = (struct axis){.dim = i, .extent = result->dims.at[i], .step = 1};
    rows_columns_plan(&g->walk, &g->program, axes, 3, false);
    g->threads = g->program.shares_bytes ? 1 : threads_count();
    g->pack_a = gemm_pack_of_a(g->kernel), g->pack_b = gemm_pack_of_b(g->kernel);
    struct gemm most = {.kernel = g->kernel, .m = g->is_backward ? g->m : g->rows, .n = g->n, .k = g->k};
    g->thread_bytes = gemm_workspace_max(&most, 1);
    step->workspace_bytes = splits_by_expert(g) ? g->threads * g->thread_bytes : gemm_workspace_max(&most, g->threads);
    TRY(threads_start());
    step->state = g;
    return arena_print(arena, &step->detail, "%s, a product for each of %lld expert%s, %d fused operation%s",
                       g->kernel->name, (long long)g->experts, plural(g->experts), step->region.count - 1,
                       plural(step->region.count - 1));
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* One expert's product, on the stack of `run`. */
struct job {
    const struct grouped *g;
    void *const *values;
    int64_t expert, first; /* its first row */
};

static int64_t number_at(const struct job *job, const struct part *part, int64_t at) {
    return dtype_load_i64(part->type, job->values[part->value], at);
}

/* Clamped: offsets may be out of range and need not ascend. */
static int64_t first_row(const struct job *job, int64_t expert) {
    const struct grouped *g = job->g;
    int64_t entry = expert - g->left_out, first = g->rows;
    if (entry < 0)
        return 0;
    if (expert < g->experts)
        first = number_at(job, &g->first, entry * g->first.experts);
    return max64(0, min64(first, g->rows));
}

/* An operand, starting at one of its rows or matrices. */
static struct gemm_matrix matrix_of(const struct job *job, const struct part *part, int64_t at) {
    int64_t bytes = dtype_of(part->type)->bits / 8;
    return (struct gemm_matrix){.base = (const char *)job->values[part->value] + at * bytes, .type = part->type};
}

/* Bytes of a lane in a group of a panel of A. */
static int64_t lane_bytes(const struct gemm_kernel *kernel) { return dtype_bytes(kernel->factors, kernel->group_a); }

/* Clears one lane of a panel. */
static void clear_lane(const struct gemm_kernel *kernel, char *lane, int width, int depth) {
    int64_t size = lane_bytes(kernel);
    for (int64_t i = 0; i < divide_up(depth, kernel->group_a); i++)
        memset(lane + i * width * size, 0, (size_t)size);
}

/* Packs rows that GATHER selects one by one; a row with an out-of-range index is 0. */
static void pack_rows(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                      int depth) {
    const struct job *job = source;
    const struct grouped *g = job->g;
    int64_t size = lane_bytes(g->kernel);
    bool gathers = g->mode == WEFT_MOE_GROUPED_MATMUL_MODE_GATHER;
    for (int i = 0; i < (gathers ? count : 1); i++) {
        int64_t row = job->first + first + i;
        int64_t token = gathers ? number_at(job, &g->index, row * g->index.rows) : row;
        if (token < 0 || token >= g->tokens) {
            clear_lane(g->kernel, (char *)panel + i * size, width, depth);
            continue;
        }
        struct gemm_matrix matrix = matrix_of(job, &g->a, token * g->a.rows);
        matrix.stride = g->a.rows, matrix.depth_stride = g->a.columns;
        g->pack_a(&matrix, (char *)panel + i * size, width, batch, 0, gathers ? 1 : count, k0, depth);
    }
}

/* The row to which SCATTER stores a row, or -1 if it is out of range. */
static int64_t scatter_row(const struct job *job, int64_t row) {
    const struct grouped *g = job->g;
    int64_t token = number_at(job, &g->index, row * g->index.rows), k = number_at(job, &g->place, row * g->place.rows);
    bool fits = token >= 0 && k >= 0 && k < g->top_k && k < g->result_rows;
    return fits && token <= (g->result_rows - 1 - k) / g->top_k ? token * g->top_k + k : -1;
}

/* The row's index among all experts' results, before SCATTER. */
static int64_t result_row(const struct job *job, int64_t row) {
    return job->g->is_backward ? job->expert * job->g->m + row : job->first + row;
}

static struct gemm_destination find_destination(const void *sink, int64_t batch, int64_t row, int rows,
                                                int64_t column) {
    (void)batch;
    const struct job *job = sink;
    const struct grouped *g = job->g;
    if (g->mode == WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER)
        return (struct gemm_destination){0};
    return contraction_destination(&g->program, &g->walk, job->values, result_row(job, row), rows, column);
}

static void store(const void *sink, void *block, int64_t ld, int64_t batch, int64_t row, int rows, int64_t column,
                  int columns) {
    (void)batch;
    const struct job *job = sink;
    const struct grouped *g = job->g;
    bool scatters = g->mode == WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER;
    int64_t first = result_row(job, row),
            size = g->kernel->type == WEFT_DATA_DOUBLE ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    for (int i = 0; i < (scatters ? rows : 1); i++) {
        int64_t row_of_result = scatters ? scatter_row(job, first + i) : first;
        struct block part = {(char *)block + i * ld * size, ld};
        if (row_of_result >= 0)
            program_run(&g->program, &g->walk, job->values, part, row_of_result, scatters ? 1 : rows, column, columns);
    }
}

/* Rows without an expert are 0; rows with one are overwritten later. */
static void store_zeros(const struct job *job) {
    const struct grouped *g = job->g;
    double zeros[PROGRAM_BLOCK];
    for (int64_t row = 0; row < g->result_rows; row++)
        for (int64_t column = 0; column < g->n; column += g->program.block) {
            int64_t columns = min64(g->program.block, g->n - column);
            memset(zeros, 0, sizeof zeros);
            program_run(&g->program, &g->walk, job->values, (struct block){zeros, columns}, row, 1, column, columns);
        }
}

static bool reaches_all(const struct job *job) {
    bool all = job->g->mode != WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER && first_row(job, 0) == 0;
    for (int64_t e = 0; e < job->g->experts; e++)
        all = all && first_row(job, e) <= first_row(job, e + 1);
    return all;
}

static void multiply(struct job *job, int threads, void *workspace) {
    const struct grouped *g = job->g;
    int64_t count = max64(0, first_row(job, job->expert + 1) - job->first);
    struct gemm_matrix a = matrix_of(job, &g->a, job->first * g->a.rows);
    struct gemm_matrix b = matrix_of(job, &g->b, g->is_backward ? job->first * g->b.rows : job->expert * g->b.experts);
    a.stride = g->a.columns, a.depth_stride = g->a.rows; /* for a gradient: tokens transposed */
    b.stride = g->b.columns, b.depth_stride = g->b.rows;
    struct gemm gemm = {.kernel = g->kernel, .batch = 1, .m = g->is_backward ? g->m : count, .n = g->n};
    gemm.k = g->is_backward ? count : g->k;
    gemm.pack_a = g->is_backward ? g->pack_a : pack_rows;
    gemm.pack_b = g->pack_b, gemm.store = store, gemm.find = find_destination;
    gemm.a = g->is_backward ? (const void *)&a : job, gemm.b = &b, gemm.sink = job;
    gemm_run(&gemm, threads, workspace);
}

/* All experts, which threads process one at a time; on the stack of `run`. */
struct experts {
    const struct grouped *g;
    void *const *values;
    char *workspace;
    atomic_llong next;
};

static void take_experts(void *context, int64_t thread) {
    struct experts *all = context;
    struct job job = {.g = all->g, .values = all->values};
    char *workspace = all->workspace + thread * all->g->thread_bytes;
    while ((job.expert = atomic_fetch_add(&all->next, 1)) < all->g->experts) {
        job.first = first_row(&job, job.expert);
        multiply(&job, 1, workspace);
    }
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    struct job job = {.g = step->state, .values = values};
    if (!job.g->is_backward && !reaches_all(&job))
        store_zeros(&job);
    if (splits_by_expert(job.g)) {
        struct experts all = {.g = job.g, .values = values, .workspace = workspace};
        threads_for(job.g->threads, take_experts, &all);
        return WEFT_STATUS_SUCCESS;
    }
    for (job.expert = 0; job.expert < job.g->experts; job.expert++) {
        job.first = first_row(&job, job.expert);
        multiply(&job, job.g->threads, workspace);
    }
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_grouped = {
    .name = "cpu.grouped",
    .doc = "expert products and their weight gradients, with fused pointwise operations",
    .accepts = accepts,
    .build = build,
    .run = run,
};
