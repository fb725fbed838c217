/* SPDX-License-Identifier: Apache-2.0 */
/* The grouped family: the products of a mixture of experts, forward and weight gradients. It uses the kernels of the
   contraction family, for which each tile of rows, or each expert, is a batch entry. One block sums each tile, always
   in the same order. */
#include "engines/cuda/product/grouped/grouped.h"
#include "base/number.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

enum {
    LIST_THREADS = 256,    /* threads of the block that lists the tiles */
    ROW_BLOCKS = 1024,     /* maximum number of blocks that gather rows */
    GROUP_TILE_BYTES = 16, /* size of a list entry, see product/grouped/tile_list.cuh */
    WORDS_BYTES = 16,      /* bytes per access to a row */
};

/* Large tiles if experts fill them. With 8-byte sums, only small ones fit. */
static const struct tile mma_tiles[] = {{128, 128, 2, 4, 0, 0, 0.60}, {64, 64, 4, 2, 0, 0, 0.40}};
static const struct tile fma_tiles[] = {{128, 128, 0, 0, 8, 8, 0.80}, {64, 64, 0, 0, 4, 4, 0.55}};

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

/* Accepts a single node: this family fuses no epilogue. Kernels address elements by plain strides, so types below a
   byte and vectorised layouts are refused. */
static weftStatus_t check_region(const struct region *region) {
    const struct node *node = region_node(region, 0);
    if (op_of(node->op) != &moe_op && op_of(node->op) != &moe_bwd_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a grouped product.", descriptor_label(node->op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: this engine fuses nothing with it; %s needs a separate kernel.", descriptor_label(node->op),
             descriptor_label(region_node(region, 1)->op));
    for (int k = 0; k < node->operand_count; k++) {
        const struct tensor *tensor = region->graph->values[node->operands[k]].tensor;
        if (tensor->vector_count != 1 || !cuda_type_name((weftDataType_t)tensor->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
                 "%s: %s is vectorised, or has a type narrower than a byte. Use plain strides and a type of whole "
                 "bytes.",
                 descriptor_label(node->op), descriptor_label(&tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

int grouped_run_along(const struct tensor *tensor, int dim) {
    /* The run divides 16 bytes, the base address and the extent. */
    int64_t fits = gcd64(tensor->alignment, 16) / dtype_bytes((weftDataType_t)tensor->type, 1);
    int64_t run = gcd64(fits > 1 ? fits : 1, tensor->dims.at[dim]);
    if (tensor->strides.at[dim] != 1 || tensor->is_by_value || tensor->is_constant)
        return 1;
    /* Rows must also start at multiples of the run. */
    for (int i = 0; i < 3; i++)
        run = i == dim ? run : gcd64(run, tensor->strides.at[i]);
    return (int)run;
}

/* Rows of an expert start anywhere, so runs follow other dimensions. `dims`: the tensor's dims of the operand's own
   index and of k; depth_is_rows: k is the rows of experts, which applies to the gradient. */
static void choose_access(struct product_operand *operand, const int dims[2], bool depth_is_rows) {
    const struct tensor *tensor = operand->tensor;
    operand->is_k_major = tensor->strides.at[dims[1]] <= tensor->strides.at[dims[0]];
    int dim = dims[operand->is_k_major];
    /* Only tokens have a batch of one; dim 1 of weights is k, which is complete for each expert. */
    bool is_rows = operand->is_k_major ? depth_is_rows : tensor->dims.at[0] == 1 && dim == 1;
    operand->run = is_rows ? 1 : grouped_run_along(tensor, dim);
}

/* token (1, tokens, k) times weight (experts, k, columns). `rows` depends on the tile, see grouped_set_rows. */
static void shape_forward(struct grouped *g, const struct moe_op *op) {
    *g = (struct grouped){.c = g->c,
                          .forward = op,
                          .offset = op->first_token_offset,
                          .y = op->output,
                          .group_rows = moe_rows(op),
                          .columns = op->weight->dims.at[2],
                          .k_count = op->weight->dims.at[1],
                          .a_dims = {1, 2},
                          .b_dims = {2, 1}};
    g->c.operand[OPERAND_A].tensor = op->token;
    g->c.operand[OPERAND_B].tensor = op->weight;
    g->c.k_count = (double)g->k_count;
}

/* dweight (experts, k, columns) = token^T times doutput: k of the product is the rows of an expert, of which there are
   at most token->dims.at[1]. */
static void shape_gradient(struct grouped *g, const struct moe_bwd_op *op) {
    *g = (struct grouped){.c = g->c,
                          .offset = op->first_token_offset,
                          .y = op->dweight,
                          .group_rows = op->token->dims.at[1],
                          .rows = op->dweight->dims.at[1],
                          .columns = op->dweight->dims.at[2],
                          .k_count = op->token->dims.at[1],
                          .a_dims = {2, 1},
                          .b_dims = {2, 1}};
    g->c.operand[OPERAND_A].tensor = op->token;
    g->c.operand[OPERAND_B].tensor = op->doutput;
    g->c.k_count = (double)g->k_count;
    g->lead_is_row = op->dweight->strides.at[1] < op->dweight->strides.at[2];
}

/* Each of the experts, and the rows before the first one, adds at most one partial tile. */
void grouped_set_rows(struct grouped *g, int64_t rows) {
    g->rows = rows;
    g->max_entries = g->group_rows / rows + g->experts + 1;
}

/* Forward tiles are chosen for the rows of an average expert, because the actual distribution is only known on the
   device. */
static void choose_tile(struct grouped *g) {
    const struct arithmetic_row *row = &arithmetic_rows[g->c.arithmetic];
    int64_t rows = g->forward ? g->group_rows / (g->experts ? g->experts : 1) : g->rows;
    bool is_large = row->bytes < 8 && rows >= 96 && g->columns >= 96;
    g->c.tile = &(row->is_mma ? mma_tiles : fma_tiles)[!is_large];
    if (g->forward)
        grouped_set_rows(g, g->c.tile->rows);
}

/* Seconds: products of padded tiles, plus moving all bytes; the constant is the launch overhead of both kernels. */
static double predict(const struct grouped *g, const struct device *device) {
    const struct node *node = g->c.node;
    double bytes = 0, rate = contraction_rate(g->c.arithmetic, device) * g->c.tile->efficiency;
    for (int k = 0; k < node->operand_count; k++)
        bytes += (double)tensor_bytes(g->c.region->graph->values[node->operands[k]].tensor);
    /* On average, an expert's last tile of rows, or last step of its k, is half empty. */
    double each = (double)g->group_rows / (double)(g->experts ? g->experts : 1);
    double tile_rows = g->forward ? g->c.tile->rows : arithmetic_rows[g->c.arithmetic].block_k;
    double padded = each > 0 ? (each / tile_rows + 0.5) * tile_rows / each : 1;
    double computing = op_flops(node->op) * padded / (rate * device->cuda.multiprocessors);
    return 4e-6 + computing + price_moving(bytes, device);
}

/* The batch entries are experts until grouped_set_rows replaces them by tiles of rows. */
weftStatus_t grouped_find(struct grouped *g, const struct region *region, const struct device *device) {
    TRY(check_region(region));
    g->c = (struct contraction){.region = region, .node = region_node(region, 0), .splits = 1};
    if (op_of(g->c.node->op) == &moe_op)
        shape_forward(g, (const struct moe_op *)g->c.node->op);
    else
        shape_gradient(g, (const struct moe_bwd_op *)g->c.node->op);
    g->experts = g->max_entries = g->forward ? g->forward->weight->dims.at[0] : g->y->dims.at[0];
    g->c.arithmetic = contraction_arithmetic(&g->c, device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse(struct grouped *g, const struct region *region, const struct device *device) {
    TRY(grouped_find(g, region, device));
    /* sm_80 and later have mma.sync with k of 16. */
    g->c.has_k16 = device->cuda.major >= 8;
    g->c.epilogue.lead = g->lead_is_row ? ROW : COLUMN;
    g->c.epilogue.run = grouped_run_along(g->y, g->lead_is_row ? 1 : 2);
    choose_access(&g->c.operand[OPERAND_A], g->a_dims, !g->forward);
    choose_access(&g->c.operand[OPERAND_B], g->b_dims, !g->forward);
    choose_tile(g);
    const int64_t most = INT32_MAX - 256; /* the last tiles extend past it */
    g->c.is_small = g->rows < most && g->columns < most && g->k_count < most && g->max_entries < most;
    g->c.seconds = predict(g, device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct grouped g;
    TRY(analyse(&g, region, device));
    offer->seconds = g.c.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* Emits a field of the arguments: the address of the tensor's value. */
static void emit_tensor(struct kernel_source *source, const struct tensor *tensor, const char *name) {
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(source->graph, tensor), 0, name);
}

/* Emits the token of each row (gather) and the row of the result for each product (scatter). Kernels check both,
   because they come from the device. */
static void emit_indices(struct kernel_source *source, const struct moe_op *op) {
    if (op->token_index) {
        emit_tensor(source, op->token_index, "token_index");
        emit_number(source, op->token_index->strides.at[1], "token_index_stride");
        emit_number(source, op->token->dims.at[1], "tokens");
    }
    if (op->token_ks) {
        emit_tensor(source, op->token_ks, "token_ks");
        emit_number(source, op->token_ks->strides.at[1], "token_ks_stride");
        emit_number(source, op->top_k, "top_k");
    }
}

void grouped_emit(struct kernel_source *source, const struct grouped *g) {
    emit_constant(source, "GATHERS", g->forward && g->forward->mode == WEFT_MOE_GROUPED_MATMUL_MODE_GATHER);
    emit_constant(source, "SCATTERS", g->forward && g->forward->mode == WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER);
    emit_constant(source, "LEFT_OUT", moe_left_out(g->offset, g->experts));
    text_add(&source->constants, "#include \"product/grouped/groups.cuh\"\n");
    emit_type(source, "y_t", (weftDataType_t)g->y->type);
    emit_tensor(source, g->offset, "offset");
    emit_number(source, g->offset->strides.at[0], "offset_stride");
    emit_number(source, g->experts, "experts");
    emit_number(source, g->group_rows, "group_rows");
    emit_tensor(source, g->y, "y");
    /* Forward, all experts share one matrix of results, whose rows are in the list. */
    emit_number(source, g->forward ? 0 : g->y->strides.at[0], "y_entry");
    emit_number(source, g->y->strides.at[1], "y_row");
    emit_number(source, g->y->strides.at[2], "y_column");
    if (g->forward) {
        emit_scratch(source, "group_tile", 0, "list");
        emit_indices(source, g->forward);
    }
}

/* Rounded up, so that gathered rows after the list are aligned. */
int64_t grouped_list_bytes(const struct grouped *g) { return round_up(g->max_entries * GROUP_TILE_BYTES, 64); }

/* Emits the addresses of tokens and of their copies, which are contiguous row by row. They are needed only if rows are
   gathered for TMA. */
static void emit_copies(struct kernel_source *source, const struct grouped *g) {
    const struct tensor *token = g->forward->token;
    emit_tensor(source, token, "tokens_at");
    emit_number(source, token->strides.at[1], "token_row");
    emit_number(source, g->copies / g->group_rows / WORDS_BYTES, "row_words");
    emit_scratch(source, "chunk<16>", grouped_list_bytes(g), "gathered");
}

weftStatus_t grouped_build_list(struct cuda_kernel *kernel, const struct grouped *g, struct arena *arena) {
    struct kernel_source source;
    /* Blocks in addition to the one that lists tiles: they copy rows, or fill the result with zeros if scattered rows
       may leave some of it unwritten. */
    bool has_others = g->copies || g->forward->mode == WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER;
    int64_t blocks = g->group_rows < ROW_BLOCKS ? g->group_rows : ROW_BLOCKS;
    kernel_source_init(&source, g->c.region);
    emit_constant(&source, "THREADS", LIST_THREADS);
    emit_constant(&source, "BLOCK_M", g->rows);
    grouped_emit(&source, g);
    emit_number(&source, g->columns, "columns");
    emit_number(&source, g->max_entries, "max_entries");
    emit_constant(&source, "COPIES", g->copies > 0);
    if (g->copies)
        emit_copies(&source, g);
    TRY(kernel_finish(&source, kernel, "product/grouped/tile_list.cuh", "tile_list", arena));
    /* Only block 0 writes the list, because its prefix sum over experts is sequential. */
    kernel->grid[0] = has_others ? (uint32_t)blocks + 1 : 1;
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = LIST_THREADS;
    return WEFT_STATUS_SUCCESS;
}

/* Emits the type, access and strides of A or B. A staged type of NULL is an integer with the signedness of the
   tensor. */
static void emit_matrix_operand(struct kernel_source *source, const struct grouped *g, int f) {
    static const char *const texts[][7] = {{"a", "a_t", "a_staged", "A_RUN", "A_IS_K_MAJOR", "a_outer", "a_k"},
                                           {"b", "b_t", "b_staged", "B_RUN", "B_IS_K_MAJOR", "b_outer", "b_k"}};
    const struct product_operand *operand = &g->c.operand[f];
    const struct arithmetic_row *row = &arithmetic_rows[g->c.arithmetic];
    const char *staged = f == OPERAND_A ? row->a_staged : row->b_staged;
    const int *dims = f == OPERAND_A ? g->a_dims : g->b_dims;
    weftDataType_t type = (weftDataType_t)operand->tensor->type;
    emit_tensor(source, operand->tensor, texts[f][0]);
    emit_type(source, texts[f][1], type);
    text_add(&source->constants, "using %s = %s;\n", texts[f][2],
             staged                   ? staged
             : type == WEFT_DATA_INT8 ? "i8"
                                      : "u8");
    emit_constant(source, texts[f][3], operand->run);
    emit_constant(source, texts[f][4], operand->is_k_major);
    emit_number(source, operand->tensor->strides.at[dims[0]], texts[f][5]);
    emit_number(source, operand->tensor->strides.at[dims[1]], texts[f][6]);
}

/* The grid covers the maximum number of tiles; blocks whose tile has no rows detect it on the device. */
static weftStatus_t build_product(struct cuda_kernel *kernel, const struct grouped *g, struct arena *arena) {
    struct kernel_source source;
    const struct tile *tile = g->c.tile;
    const int64_t tiles[] = {divide_up(g->rows, tile->rows), divide_up(g->columns, tile->columns), g->max_entries};
    contraction_emit_tile(&source, &g->c);
    emit_constant(&source, "FORWARD", g->forward != NULL);
    emit_constant(&source, "RUN", g->c.epilogue.run);
    emit_constant(&source, "IS_SPLIT", 0);
    grouped_emit(&source, g);
    emit_matrix_operand(&source, g, OPERAND_A);
    emit_matrix_operand(&source, g, OPERAND_B);
    if (g->forward)
        emit_number(&source, g->c.operand[OPERAND_B].tensor->strides.at[0], "b_entry");
    emit_number(&source, g->rows, "rows");
    emit_number(&source, g->columns, "columns");
    emit_number(&source, g->k_count, "k_count");
    /* One split: at least all steps of k, whose actual number per expert the gradient determines on the device. */
    emit_number(&source, g->k_count / arithmetic_rows[g->c.arithmetic].block_k + 1, "steps_per_split");
    text_add(&source.code, "#include \"product/grouped/grouped.cuh\"\n\n");
    return contraction_end_tiles(&source, kernel, &g->c, tiles, arena);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct grouped g;
    struct cuda_step *state;
    TRY(analyse(&g, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (tensor_elements(g.y) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    /* The list comes first in stream order, because the product reads it. */
    if (g.forward) {
        TRY(grouped_build_list(&state->kernels[state->count++], &g, arena));
        step->workspace_bytes = grouped_list_bytes(&g);
    }
    TRY(build_product(&state->kernels[state->count++], &g, arena));
    return arena_print(arena, &step->detail, "%s, tiles of %dx%dx%d, at most %lld batch entries",
                       arithmetic_rows[g.c.arithmetic].is_mma ? "tensor cores" : "fused multiply-adds", g.c.tile->rows,
                       g.c.tile->columns, arithmetic_rows[g.c.arithmetic].block_k, (long long)g.max_entries);
}

const struct family cuda_grouped = {
    .name = "cuda.grouped",
    .doc = "products of a mixture of experts, with tokens gathered or scattered, and their weight gradients",
    .accepts = accepts,
    .build = build,
};
