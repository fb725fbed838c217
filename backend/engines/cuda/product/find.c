/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the product of a region and the operations before and after it. */
#include "engines/cuda/product/contraction.h"
#include "engines/product.h"

static bool is_scaling(const struct node *node) { return op_of(node->op) == &block_scale_dequantize_op; }

/* True for nodes that contraction_find_prepared accepts in addition to the product. is_preparing: those of them that
   may precede the product. */
static bool is_fusible(const struct node *node) {
    return node_is_pointwise(node) || reductions_support(node) || is_scaling(node);
}

static bool is_preparing(const struct node *node) { return node_is_pointwise(node) || is_scaling(node); }

/* Checks the tensors of the product: its inputs come from outside the region, or, if accepts_prologue, from nodes that
   may precede it; all tensors are plain and have types that kernels can address. */
static weftStatus_t check_operands(const struct region *region, bool accepts_prologue, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        const struct value *value = &region->graph->values[node->operands[i]];
        const struct tensor *tensor = value->tensor;
        bool is_produced_inside = region_makes(region, node->operands[i]);
        if (!node->is_output[i] && is_produced_inside &&
            !(accepts_prologue && is_preparing(&region->graph->nodes[value->producer])))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s reads %s, which %s produces: only operations after a product are fused with it, not operations "
                 "before it.",
                 descriptor_label(node->op), descriptor_label(&tensor->base),
                 descriptor_label(region->graph->nodes[value->producer].op));
        TRY(tensor_check_plain(tensor, node->op));
        if (!cuda_type_name((weftDataType_t)tensor->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
                 descriptor_label(node->op), descriptor_label(&tensor->base),
                 dtype_of((weftDataType_t)tensor->type)->name);
    }
    return WEFT_STATUS_SUCCESS;
}

/* `goes_with` selects the nodes that the region may have in addition to its only product. */
static weftStatus_t find(struct contraction *c, const struct region *region,
                         bool (*goes_with)(const struct node *node)) {
    const struct node *node;
    /* Only the shape is determined here. How it is computed is up to contraction_plan. */
    *c = (struct contraction){.region = region};
    TRY(region_find_product(&node, region, goes_with));
    TRY(check_operands(region, goes_with == is_fusible, node));
    TRY(contraction_shape(c, node));
    for (int f = 0; f < OPERANDS; f++)
        c->operand[f].prepared = NO_PROLOGUE;
    return WEFT_STATUS_SUCCESS;
}

/* Portable kernels read operands unchanged: only operations after the product are fused. */
weftStatus_t contraction_find(struct contraction *c, const struct region *region) {
    return find(c, region, node_is_pointwise);
}

/* Replaces an operand that the region scales by the unscaled tensor, if both have the same layout. Scales can be
   applied inside the product only if no other node reads the scaled tensor, because it is never written to memory.
   Increments *count if the operand was replaced. */
static weftStatus_t fold_scaling(struct contraction *c, struct product_operand *operand, int *count) {
    const struct graph *graph = c->region->graph;
    int producer = graph->values[operand->value].producer;
    if (producer < 0 || !region_has(c->region, producer) || !is_scaling(&graph->nodes[producer]))
        return WEFT_STATUS_SUCCESS;
    const struct descriptor *op = graph->nodes[producer].op;
    const struct block_scale_dequantize_op *scaling = (const struct block_scale_dequantize_op *)op;
    /* The product's modes have the strides of y and will now index x. */
    bool is_alike = scaling->x->vector_count == 1;
    for (int64_t i = 0; i < scaling->x->dims.count; i++)
        is_alike = is_alike && scaling->x->strides.at[i] == scaling->y->strides.at[i];
    if (!is_alike || region_exports(c->region, operand->value))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: %s must have the strides of %s and be read only by the product, to be scaled inside it.",
             descriptor_label(op), descriptor_label(&scaling->y->base), descriptor_label(&scaling->x->base));
    operand->scaling = scaling;
    operand->tensor = scaling->x;
    operand->value = graph_find_value(graph, scaling->x);
    ++*count;
    return WEFT_STATUS_SUCCESS;
}

/* True if find_prologue_nodes has already assigned the node to the prologue. */
static bool is_in_prologue(const struct contraction *c, const struct node *node) {
    for (int i = 0; i < c->prologue_count; i++)
        if (c->prologue_nodes[i] == node)
            return true;
    return false;
}

/* Sets *is if the result of a pointwise node contributes only to the operand: it is the value `prepared`, or all its
   readers are in the prologue. Fails if another node reads it too, or if it is both operands, because it is never
   written to memory. */
static weftStatus_t check_prologue_node(const struct contraction *c, const struct node *node, int prepared,
                                        bool *belongs) {
    int out = 0;
    while (!node->is_output[out])
        out++;
    out = node->operands[out];
    bool is_both = c->operand[OPERAND_A].value == c->operand[OPERAND_B].value;
    bool is_shared = region_exports(c->region, out) || (out == prepared && is_both);
    *belongs = out == prepared;
    for (int i = 0; i < c->region->count; i++) {
        const struct node *reader = region_node(c->region, i);
        if (!node_reads(reader, out))
            continue;
        *belongs = *belongs || is_in_prologue(c, reader);
        is_shared = is_shared || !(is_in_prologue(c, reader) || (reader == c->node && out == prepared));
    }
    /* Otherwise the node follows the product or is unrelated. */
    if (*belongs && is_shared)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: its result must be read only by the product, as one operand.", descriptor_label(node->op));
    return WEFT_STATUS_SUCCESS;
}

/* Replaces the operand by the one tensor with the operand's dims and strides that the prologue reads. Kernels read that
   tensor with the modes of the original operand. */
static weftStatus_t use_prologue_input(struct contraction *c, struct product_operand *operand) {
    const struct graph *graph = c->region->graph;
    /* If several tensors had the operand's layout, the one to stage would be ambiguous. */
    int input = NO_PROLOGUE;
    for (int b = 0; b < c->prologue_count; b++)
        for (int k = 0; k < c->prologue_nodes[b]->operand_count; k++) {
            int value = c->prologue_nodes[b]->operands[k];
            const struct tensor *tensor = graph->values[value].tensor;
            if (c->prologue_nodes[b]->is_output[k] || region_makes(c->region, value) ||
                !tensor_same_layout(tensor, operand->tensor) || value == input)
                continue;
            if (input != NO_PROLOGUE)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                     "%s: both %s and %s could replace its operand, but only one tensor may.",
                     descriptor_label(c->node->op), descriptor_label(&graph->values[input].tensor->base),
                     descriptor_label(&tensor->base));
            input = value;
        }
    if (input == NO_PROLOGUE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: the operations before it read no tensor with the type, dims and strides of %s that could replace it.",
             descriptor_label(c->node->op), descriptor_label(&operand->tensor->base));
    operand->prepared = operand->value;
    operand->value = input;
    operand->tensor = graph->values[input].tensor;
    return WEFT_STATUS_SUCCESS;
}

/* Finds the pointwise operations of the region that lead to an operand and appends them to the prologue, last first.
   Prologues of both operands are refused (count > 0), because kernels stage only one operand through registers. */
static weftStatus_t find_prologue_nodes(struct contraction *c, struct product_operand *operand) {
    int count = c->prologue_count;
    /* Iterate backwards, so that readers are visited before their producers and chains are followed to their first
       operation. */
    for (int i = c->region->count; i-- > 0;) {
        const struct node *node = region_node(c->region, i);
        bool belongs = false;
        if (!node_is_pointwise(node) || is_in_prologue(c, node))
            continue;
        TRY(check_prologue_node(c, node, operand->value, &belongs));
        if (!belongs)
            continue;
        if (count > 0 || c->prologue_count == PROLOGUE_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s: at most %d operations before one of its operands are fused with it.",
                 descriptor_label(c->node->op), PROLOGUE_MAX);
        c->prologue_nodes[c->prologue_count++] = node;
    }
    return c->prologue_count > count ? use_prologue_input(c, operand) : WEFT_STATUS_SUCCESS;
}

/* `left` is the number of scalings that became operands minus the number in the region. A remaining scaling would apply
   to something else, such as a result. */
weftStatus_t contraction_find_prepared(struct contraction *c, const struct region *region) {
    int left = 0;
    TRY(find(c, region, is_fusible));
    for (int f = 0; f < OPERANDS; f++)
        TRY(fold_scaling(c, &c->operand[f], &left));
    for (int f = 0; f < OPERANDS; f++)
        TRY(find_prologue_nodes(c, &c->operand[f]));
    for (int i = 0; i < region->count; i++)
        left -= is_scaling(region_node(region, i));
    if (left < 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: block scales may only multiply its operands.",
             descriptor_label(c->node->op));
    return WEFT_STATUS_SUCCESS;
}

/* All other nodes of a region belong to the epilogue. */
bool contraction_is_in_epilogue(const struct contraction *c, const struct node *node) {
    return node != c->node && !is_scaling(node) && !is_in_prologue(c, node);
}

/* Only inputs count: the type of the result does not narrow anything. */
int contraction_relaxes(const struct graph *graph, int node) {
    const struct node *product = &graph->nodes[node];
    bool has_half = false, has_bfloat16 = false, has_float = false;
    for (int k = 0; k < product->operand_count; k++) {
        int32_t type = graph->values[product->operands[k]].tensor->type;
        has_half = has_half || (!product->is_output[k] && type == WEFT_DATA_HALF);
        has_bfloat16 = has_bfloat16 || (!product->is_output[k] && type == WEFT_DATA_BFLOAT16);
        has_float = has_float || (!product->is_output[k] && type == WEFT_DATA_FLOAT);
    }
    return node_is_product(product) && (has_float || (has_half && has_bfloat16)) ? RELAX_TF32 : 0;
}

/* True if a node is the product of a region, or produces one of its inputs, directly or through others. The recursion
   ends because regions have no cycles. It costs O(nodes^2) per level, and regions have few nodes. */
static bool leads_to_product(const struct region *region, const struct node *node) {
    bool leads = node_is_product(node);
    for (int k = 0; k < node->operand_count && !leads; k++)
        for (int i = 0; i < region->count && node->is_output[k] && !leads; i++)
            leads = node_reads(region_node(region, i), node->operands[k]) &&
                    leads_to_product(region, region_node(region, i));
    return leads;
}

/* The epilogue reads an element where it stores it, but other blocks also read the operands of the product. */
bool contraction_may_alias(const struct step *step, int in, int out) {
    const struct region *region = &step->region;
    for (int i = 0; i < region->count; i++)
        if (node_reads(region_node(region, i), in) && leads_to_product(region, region_node(region, i)))
            return false;
    return tensor_same_layout(region->graph->values[in].tensor, region->graph->values[out].tensor);
}
