/* SPDX-License-Identifier: Apache-2.0 */
/* The product of a region, and the operations before it and behind. */
#include "engines/cuda/product/contraction.h"
#include "engines/product.h"

#include <stdlib.h>
#include <string.h>

static bool is_scaling(const struct node *node) { return op_of(node->op) == &block_scale_dequantize_op; }

/* What a region of contraction_find_prepared may have beside its product; is_preparing: of these, in front of it. */
static bool goes_around(const struct node *node) {
    return node_is_pointwise(node) || reductions_serve(node) || is_scaling(node);
}

static bool is_preparing(const struct node *node) { return node_is_pointwise(node) || is_scaling(node); }

/* Of the product: what it reads comes from outside the region, or from nodes that may be in front; all tensors are
   plain and of types that kernels address. */
static weftStatus_t check_operands(const struct region *region, bool takes_prepared, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        const struct value *value = &region->graph->values[node->operands[i]];
        const struct tensor *tensor = value->tensor;
        bool is_made_here = region_makes(region, node->operands[i]);
        if (!node->is_output[i] && is_made_here &&
            !(takes_prepared && is_preparing(&region->graph->nodes[value->producer])))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s reads %s, which %s makes: operations are fused behind a product, not before it.",
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

/* `goes_with`: which nodes the region may have beside its one product. */
static weftStatus_t find(struct contraction *c, const struct region *region,
                         bool (*goes_with)(const struct node *node)) {
    const struct node *node;
    /* Below, the shape alone: how it is computed is contraction_plan's business. */
    *c = (struct contraction){.region = region};
    TRY(region_find_product(&node, region, goes_with));
    TRY(check_operands(region, goes_with == goes_around, node));
    TRY(contraction_shape(c, node));
    for (int f = 0; f < OPERANDS; f++)
        c->operand[f].prepared = NOTHING_BEFORE;
    return WEFT_STATUS_SUCCESS;
}

/* Portable kernels read operands as they lie: only what is behind the product is fused. */
weftStatus_t contraction_find(struct contraction *c, const struct region *region) {
    return find(c, region, node_is_pointwise);
}

/* An operand that the region scales becomes the tensor whose blocks are scaled, where both lie alike. Scales apply
   inside the product only if nobody sees the scaled tensor: it never reaches memory. Adds 1 to *count where it is. */
static weftStatus_t take_scaling(struct contraction *c, struct product_operand *operand, int *count) {
    const struct graph *graph = c->region->graph;
    int producer = graph->values[operand->value].producer;
    if (producer < 0 || !region_has(c->region, producer) || !is_scaling(&graph->nodes[producer]))
        return WEFT_STATUS_SUCCESS;
    const struct descriptor *op = graph->nodes[producer].op;
    const struct block_scale_dequantize_op *scaling = (const struct block_scale_dequantize_op *)op;
    /* The product's modes were made of y's strides, and now count through x. */
    bool is_alike = scaling->x->vector_count == 1;
    for (int64_t i = 0; i < scaling->x->dims.count; i++)
        is_alike = is_alike && scaling->x->strides.at[i] == scaling->y->strides.at[i];
    if (!is_alike || region_exports(c->region, operand->value))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: %s must have the strides of %s and be read by the product alone, to be scaled within it.",
             descriptor_label(op), descriptor_label(&scaling->y->base), descriptor_label(&scaling->x->base));
    operand->scaling = scaling;
    operand->tensor = scaling->x;
    operand->value = graph_find_value(graph, scaling->x);
    ++*count;
    return WEFT_STATUS_SUCCESS;
}

/* Among those that find_before has taken so far. */
static bool is_before(const struct contraction *c, const struct node *node) {
    for (int i = 0; i < c->before_count; i++)
        if (c->before[i] == node)
            return true;
    return false;
}

/* Whether what a pointwise node makes becomes the operand, and nothing else: its value is `prepared`, or is read by
   nodes that are before the product already. An error where it is read elsewhere, too, or is both operands, as it never
   reaches memory. */
static weftStatus_t check_before(const struct contraction *c, const struct node *node, int prepared, bool *is) {
    int out = 0;
    while (!node->is_output[out])
        out++;
    out = node->operands[out];
    bool is_both = c->operand[OPERAND_A].value == c->operand[OPERAND_B].value;
    bool is_shared = region_exports(c->region, out) || (out == prepared && is_both);
    *is = out == prepared;
    for (int i = 0; i < c->region->count; i++) {
        const struct node *reader = region_node(c->region, i);
        if (!node_reads(reader, out))
            continue;
        *is = *is || is_before(c, reader);
        is_shared = is_shared || !(is_before(c, reader) || (reader == c->node && out == prepared));
    }
    /* Otherwise the node belongs behind the product or elsewhere. */
    if (*is && is_shared)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: what it makes must be read by the product alone, as one operand.", descriptor_label(node->op));
    return WEFT_STATUS_SUCCESS;
}

/* The one tensor of the operand's dims and strides that operations before the product read takes its place. Kernels
   read that tensor by the modes that were made of the operand's. */
static weftStatus_t take_prepared(struct contraction *c, struct product_operand *operand) {
    const struct graph *graph = c->region->graph;
    /* Of several tensors of the operand's layout none would be the one to stage. */
    int input = NOTHING_BEFORE;
    for (int b = 0; b < c->before_count; b++)
        for (int k = 0; k < c->before[b]->operand_count; k++) {
            int value = c->before[b]->operands[k];
            const struct tensor *tensor = graph->values[value].tensor;
            if (c->before[b]->is_output[k] || region_makes(c->region, value) ||
                !tensor_same_layout(tensor, operand->tensor) || value == input)
                continue;
            if (input != NOTHING_BEFORE)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: %s and %s would both become its operand.",
                     descriptor_label(c->node->op), descriptor_label(&graph->values[input].tensor->base),
                     descriptor_label(&tensor->base));
            input = value;
        }
    if (input == NOTHING_BEFORE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: operations before it read no tensor of %s's type, dims and strides, to become it in its place.",
             descriptor_label(c->node->op), descriptor_label(&operand->tensor->base));
    operand->prepared = operand->value;
    operand->value = input;
    operand->tensor = graph->values[input].tensor;
    return WEFT_STATUS_SUCCESS;
}

/* Pointwise operations of the region that lead to an operand. Operations before both operands are refused (count > 0):
   kernels stage one operand through registers. Its nodes are appended to c->before, last first. */
static weftStatus_t find_before(struct contraction *c, struct product_operand *operand) {
    int count = c->before_count;
    /* Backwards: readers come before what they read, so that chains are followed to their first operation. */
    for (int i = c->region->count; i-- > 0;) {
        const struct node *node = region_node(c->region, i);
        bool is = false;
        if (!node_is_pointwise(node) || is_before(c, node))
            continue;
        TRY(check_before(c, node, operand->value, &is));
        if (!is)
            continue;
        if (count > 0 || c->before_count == BEFORE_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s: up to %d operations before one of its operands are fused with it.", descriptor_label(c->node->op),
                 BEFORE_MAX);
        c->before[c->before_count++] = node;
    }
    return c->before_count > count ? take_prepared(c, operand) : WEFT_STATUS_SUCCESS;
}

/* `left` counts scalings that became operands against those in the region: one that is left over would scale something
   else, as a result. */
weftStatus_t contraction_find_prepared(struct contraction *c, const struct region *region) {
    int left = 0;
    TRY(find(c, region, goes_around));
    for (int f = 0; f < OPERANDS; f++)
        TRY(take_scaling(c, &c->operand[f], &left));
    for (int f = 0; f < OPERANDS; f++)
        TRY(find_before(c, &c->operand[f]));
    for (int i = 0; i < region->count; i++)
        left -= is_scaling(region_node(region, i));
    if (left < 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: scales of blocks multiply its operands here and nothing else.", descriptor_label(c->node->op));
    return WEFT_STATUS_SUCCESS;
}

/* Everything else of a region is in the epilogue. */
bool contraction_is_behind(const struct contraction *c, const struct node *node) {
    return node != c->node && !is_scaling(node) && !is_before(c, node);
}

weftStatus_t contraction_may_narrow(void) {
    /* What cuDNN and cuBLAS read, too: whoever forbids tf32 there means all libraries. */
    const char *override = getenv("NVIDIA_TF32_OVERRIDE");
    if (override && strcmp(override, "0") == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "NVIDIA_TF32_OVERRIDE=0 forbids to narrow floats to tf32. Unset it.");
    return WEFT_STATUS_SUCCESS;
}

/* Of inputs alone: what the result is stored as narrows nothing. */
bool contraction_narrows(const struct graph *graph, int node) {
    const struct node *product = &graph->nodes[node];
    bool has_half = false, has_bfloat16 = false, has_float = false;
    for (int k = 0; k < product->operand_count; k++) {
        int32_t type = graph->values[product->operands[k]].tensor->type;
        has_half = has_half || (!product->is_output[k] && type == WEFT_DATA_HALF);
        has_bfloat16 = has_bfloat16 || (!product->is_output[k] && type == WEFT_DATA_BFLOAT16);
        has_float = has_float || (!product->is_output[k] && type == WEFT_DATA_FLOAT);
    }
    return node_is_product(product) && (has_float || (has_half && has_bfloat16));
}

/* Whether a node is the product of a region, or makes what that reads. Recursion ends: a region has no cycle.
   O(nodes^2) for each level: regions are a few nodes. */
static bool leads_to_product(const struct region *region, const struct node *node) {
    bool leads = node_is_product(node);
    for (int k = 0; k < node->operand_count && !leads; k++)
        for (int i = 0; i < region->count && node->is_output[k] && !leads; i++)
            leads = node_reads(region_node(region, i), node->operands[k]) &&
                    leads_to_product(region, region_node(region, i));
    return leads;
}

/* The epilogue reads an element where it stores it; operands of the product are read by other blocks as well. */
bool contraction_may_alias(const struct step *step, int in, int out) {
    const struct region *region = &step->region;
    for (int i = 0; i < region->count; i++)
        if (node_reads(region_node(region, i), in) && leads_to_product(region, region_node(region, i)))
            return false;
    return tensor_same_layout(region->graph->values[in].tensor, region->graph->values[out].tensor);
}
