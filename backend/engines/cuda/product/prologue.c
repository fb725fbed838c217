/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise operations before a product: finding them, their operands, and code generation. */
#include "engines/cuda/product/prologue.h"
#include "engines/cuda/core/formula.h"
#include "engines/product.h"

enum { ACCESS_BYTES = 16 };

/* Values are numbered by the region's graph. */
static const struct tensor *tensor_at(const struct prologue *prologue, int value) {
    return prologue->c->region->graph->values[value].tensor;
}

/* ---- Finding operations ------------------------------------------------------------------------------------------ */

/* Breadth-first search from the operand backwards through pointwise operations; `nodes` is also the queue. PROLOGUE_MAX
   bounds it. Returns the number of nodes of the first operand that has any, or 0 if no operand has any or one has too
   many. */
int prologue_companions(const struct graph *graph, int node, int *nodes) {
    const struct node *product = &graph->nodes[node];
    int count = 0;
    if (!node_is_product(product))
        return 0;
    /* The first iteration visits only operand i of the product, later ones all inputs of a queued node. */
    for (int i = 0; i < product->operand_count && count == 0; i++) {
        const struct node *reader = product;
        int first = i, last = i + 1, next = 0;
        do {
            for (int k = first; k < last; k++) {
                int producer = graph->values[reader->operands[k]].producer;
                bool is_new = !reader->is_output[k] && producer >= 0 && node_is_pointwise(&graph->nodes[producer]);
                /* A node with two readers is added once. */
                for (int j = 0; j < count; j++)
                    is_new = is_new && nodes[j] != producer;
                if (is_new && count == PROLOGUE_MAX)
                    return 0; /* more than a product accepts */
                if (is_new)
                    nodes[count++] = producer;
            }
            reader = next < count ? &graph->nodes[nodes[next++]] : NULL;
            first = 0;
            last = reader ? reader->operand_count : 0;
        } while (reader);
    }
    return count;
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

/* The axis that is dimension `dim` of the operand's tensor, or NULL. Axes are compared by extent and stride, since they
   are dimensions of this very tensor. */
static const struct prologue_axis *axis_of(const struct prologue *prologue, int dim) {
    const struct tensor *a = prologue->c->operand[OPERAND_A].tensor;
    for (int i = 0; i < prologue->axis_count; i++)
        if (prologue->axes[i].extent == a->dims.at[dim] && prologue->axes[i].stride == a->strides.at[dim])
            return &prologue->axes[i];
    return NULL;
}

/* Adds a scalar, or a vector along one axis; other shapes would need an address per element. A tensor that several
   operations read is loaded once. */
static weftStatus_t add_operand(struct prologue *h, const struct node *node, int value) {
    const struct tensor *tensor = tensor_at(h, value), *a = h->c->operand[OPERAND_A].tensor;
    struct prologue_operand operand = {.value = value, .type = (weftDataType_t)tensor->type, .extent = 1};
    /* count: number of dims with more than one element; dim: the last of them. */
    int dim = NO_DIM, count = 0;
    for (int i = 0; i < h->operand_count; i++)
        if (h->operands[i].value == value)
            return WEFT_STATUS_SUCCESS;
    for (int i = 0; i < tensor->dims.count; i++)
        if (tensor->dims.at[i] != 1) {
            dim = i;
            count++;
        }
    bool is_vector = count == 1 && tensor->dims.count == a->dims.count && tensor->dims.at[dim] == a->dims.at[dim];
    const struct prologue_axis *axis = is_vector ? axis_of(h, dim) : NULL;
    if (count > 0 && !axis)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: %s has dims %s; operations before a product may read scalars, and vectors over the rows of its "
             "operand or over k.",
             descriptor_label(node->op), descriptor_label(&tensor->base), tensor_dims_text(tensor));
    if (!cuda_type_name(operand.type) || tensor->vector_count != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: %s has data type %s, which operations before a product do not read.", descriptor_label(node->op),
             descriptor_label(&tensor->base), dtype_of(operand.type)->name);
    if (h->operand_count == PROLOGUE_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the operations before it read more than %d tensors.",
             descriptor_label(h->c->node->op), PROLOGUE_MAX);
    if (count > 0) {
        operand.extent = tensor->dims.at[dim];
        operand.stride = tensor->strides.at[dim];
        operand.runs_along = axis->runs_along;
    }
    h->operands[h->operand_count++] = operand;
    return WEFT_STATUS_SUCCESS;
}

/* Collects the inputs of all prologue operations except A, which arrives in registers. */
weftStatus_t prologue_find(struct prologue *h) {
    const struct contraction *c = h->c;
    weftDataType_t type = (weftDataType_t)c->operand[OPERAND_A].tensor->type;
    if (c->prologue_count == 0)
        return WEFT_STATUS_SUCCESS;
    /* wgmma reads A from registers, B only from shared memory; there, two 16-bit elements share a register. */
    if (c->operand[OPERAND_A].prepared == NO_PROLOGUE || !dtype_is_half(type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: operations before it are fused only on its first operand, of type half or bfloat16.",
             descriptor_label(c->node->op));
    for (int b = 0; b < c->prologue_count; b++) {
        const struct node *node = c->prologue_nodes[b];
        if (((const struct pointwise_op *)node->op)->pw->mode == WEFT_POINTWISE_GEN_INDEX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: coordinates are not generated before a product.",
                 descriptor_label(node->op));
        TRY(formula_accepts(node->op));
        for (int k = 0; k < node->operand_count; k++) {
            int value = node->operands[k];
            if (!node->is_output[k] && !region_makes(c->region, value) && value != c->operand[OPERAND_A].value)
                TRY(add_operand(h, node, value));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

/* True if all elements of a vector exist and form whole accesses, so that one load without a test at the end suffices.
   `vector_length` is even and fits in 16 bytes. */
static bool is_whole(const struct prologue *h, const struct prologue_operand *operand) {
    return operand->stride == 1 && operand->extent % h->vector_length == 0 &&
           tensor_at(h, operand->value)->alignment % ACCESS_BYTES == 0;
}

/* Emits struct <name>_read and the function that loads these operands. `along`: operands that vary along the contiguous
   axis, a vector that starts at `at`; otherwise operands along the other axis and scalars, one element at `at`. */
static void emit_read(struct kernel_source *source, const struct prologue *h, bool along, const char *name) {
    bool has_extent = false; /* shared by all operands that vary along an axis */
    text_add(&source->code, "struct %s_read {\n", name);
    for (int i = 0; i < h->operand_count; i++)
        if (h->operands[i].runs_along == along)
            text_add(&source->code, "    run<%s, %d> b%d;\n", cuda_type_name(h->operands[i].type),
                     along ? h->vector_length : 1, i);
    text_add(&source->code, "};\n\nDEVICE %s_read read_%s(const arguments& p, i32 at%s) {\n    %s_read in;\n", name,
             name, along ? ", bool exist" : "", name);
    for (int i = 0; i < h->operand_count; i++) {
        const struct prologue_operand *operand = &h->operands[i];
        if (operand->runs_along != along)
            continue;
        emit_pointer(source, operand->type, operand->value, 0, named("b%d", i).text);
        /* Reads past the extent are clamped to its last elements: their results are multiplied by zeros or dropped. */
        if (operand->extent > 1 && !has_extent)
            emit_number(source, operand->extent, named("%s_extent", name).text);
        has_extent = has_extent || operand->extent > 1;
        if (operand->extent > 1)
            emit_number(source, operand->stride, named("b%d_stride", i).text);
        if (operand->extent == 1)
            text_add(&source->code, "    in.b%d.at[0] = *(p.b%d + 0);\n", i, i);
        else if (!along)
            text_add(&source->code,
                     "    in.b%d.at[0] = (p.b%d + clamped(at, p.across_extent, 1, false) * p.b%d_stride)[0];\n", i, i,
                     i);
        else if (is_whole(h, operand))
            text_add(&source->code, "    in.b%d = load_run<%s, %d>(p.b%d + clamped(at, p.along_extent, %d, exist));\n",
                     i, cuda_type_name(operand->type), h->vector_length, i, h->vector_length);
        else
            text_add(&source->code,
                     "    for (int e = 0; e < %d; e++)\n        in.b%d.at[e] = (p.b%d + clamped(at + e, "
                     "p.along_extent, 1, exist) * "
                     "p.b%d_stride)[0];\n",
                     h->vector_length, i, i, i);
    }
    text_add(&source->code, "    return in;\n}\n\n");
}

/* Emits prepare(): from elements of A to those that the product reads, converted in pairs. The prologue list has the
   last operation first, so it is traversed backwards. The last operation is not rounded by itself, because rounded_pair
   rounds it. Names are values of the graph: v<value>. */
static void emit_prepare(struct kernel_source *source, const struct prologue *h) {
    const struct product_operand *a = &h->c->operand[OPERAND_A];
    const char *type = cuda_type_name((weftDataType_t)a->tensor->type);
    text_add(&source->code,
             "DEVICE void prepare(const arguments& p, u32* r, const along_read& along, const across_read& across) {\n"
             "    float results[%d];\n    #pragma unroll\n    for (int e = 0; e < %d; e++) {\n"
             "        const %s v%d = {(u16)(r[e / 2] >> e %% 2 * 16)};\n",
             h->vector_length, h->vector_length, type, a->value);
    for (int i = 0; i < h->operand_count; i++)
        text_add(&source->code, "        const %s v%d = %s.b%d.at[%s];\n", cuda_type_name(h->operands[i].type),
                 h->operands[i].value, h->operands[i].runs_along ? "along" : "across", i,
                 h->operands[i].runs_along ? "e" : "0");
    /* All operations except the last round to the type of their tensor. */
    for (int b = h->c->prologue_count; b-- > 0;)
        (b > 0 ? formula_emit : formula_emit_exact)(&source->code, h->c->region->graph, h->c->prologue_nodes[b]);
    text_add(&source->code,
             "        results[e] = (float)v%d;\n    }\n    #pragma unroll\n    for (int i = 0; i < %d; i++)\n"
             "        r[i] = rounded_pair<%s>(results[2 * i], results[2 * i + 1]);\n}\n\n",
             a->prepared, h->vector_length / 2, type);
}

void prologue_emit(struct kernel_source *source, const struct prologue *h) {
    if (h->c->prologue_count == 0)
        return;
    text_add(&source->code,
             "/* Index of a vector, clamped to the last one unless it is known to exist. */\n"
             "DEVICE i32 clamped(i32 at, i64 extent, i32 vector_length, bool exist) {\n"
             "    return exist || at < (i32)extent - vector_length ? at : (i32)extent - vector_length;\n}\n\n");
    emit_read(source, h, true, "along");
    emit_read(source, h, false, "across");
    emit_prepare(source, h);
}
