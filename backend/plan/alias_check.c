/* SPDX-License-Identifier: Apache-2.0 */
/* Alias check: decides whether an output may share memory with another slot. Outputs may interleave with other tensors
   without touching their elements. An output may overlap an input only if the input is dead, or if the step that writes
   the output is known to read each element before it overwrites it. Families answer that once, when the plan is built.
   */
#include "plan/alias_check.h"
#include "graph/descriptor.h"

/* ---- Permissions ------------------------------------------------------------------------------------------------- */

/* True if only the writer of `out` can observe that `out` is stored exactly over `in`: every other step that reads `in`
   runs before `out` is written. */
static bool may_share(const struct draft *draft, int in, int out) {
    const struct value *values = draft->graph->values;
    return tensor_same_layout(values[in].tensor, values[out].tensor) &&
           !draft->is_viewed[in] && /* a view reads other elements than the tensor itself */
           draft->last_reading[in] <= draft->first_writing[out];
}

/* Offset in bytes at which `in` may be stored inside `out` because their operation copies it there unchanged (concat),
   or -1. */
static int64_t offset_in_output(const struct graph *graph, int in, int out) {
    const struct descriptor *op = graph->nodes[graph->values[out].producer].op;
    bool only_reader = graph->values[in].readers == 1 && graph->values[in].read_by[0] == graph->values[out].producer;
    return only_reader && op_of(op)->offset_in_result
               ? op_of(op)->offset_in_result(op, graph->values[in].tensor, graph->values[out].tensor)
               : -1;
}

/* Offset in bytes from `out` at which its writer allows `in` to start, or -1. The kernel family is asked first, because
   only it knows the order of its reads and writes; if it declines, the operation is asked. */
static int64_t query_writer(const struct draft *draft, int in, int out) {
    const struct step *step = &draft->steps[draft->first_writing[out]];
    bool may_alias = may_share(draft, in, out) && !draft->is_viewed[out] && step->family->may_alias &&
                     step->family->may_alias(step, in, out);
    return may_alias ? 0 : offset_in_output(draft->graph, in, out);
}

/* Linear in the number of inputs of the step. */
static const struct permission *find_permission(const struct plan *plan, const struct slot *out, int in) {
    for (int i = out->first_permission; i < out->first_permission + out->permission_count; i++)
        if (plan->permissions[i].in == in)
            return &plan->permissions[i];
    return NULL;
}

/* Visits each graph input that the writer of `out` reads, once per read. With visit == NULL it only counts. */
static int visit_inputs_of_writer(struct plan *plan, struct slot *out,
                                  void (*visit)(struct plan *plan, struct slot *out, int in)) {
    const struct graph *graph = plan->draft.graph;
    const struct region *region = &plan->draft.steps[plan->draft.first_writing[out->value]].region;
    int count = 0;
    for (int n = 0; n < region->count; n++)
        for (int k = 0; k < region_node(region, n)->operand_count; k++) {
            int value = region_node(region, n)->operands[k];
            bool is_input = value_is_input(&graph->values[value]);
            count += is_input;
            if (is_input && visit)
                visit(plan, out, value);
        }
    return count;
}

/* Queries the family once per pair; the answer holds for all executions. */
static void add_permission(struct plan *plan, struct slot *out, int in) {
    if (find_permission(plan, out, in))
        return;
    plan->permissions[out->first_permission + out->permission_count++] =
        (struct permission){.in = in, .offset = query_writer(&plan->draft, in, out->value)};
}

weftStatus_t alias_check_list(struct plan *plan) {
    /* Count first, then fill: an input that is read twice counts twice but is listed once. */
    size_t most = 0;
    int count = 0;
    for (int s = 0; s < plan->slot_count; s++)
        if (plan->slots[s].is_written)
            most += (size_t)visit_inputs_of_writer(plan, &plan->slots[s], NULL);
    TRY(arena_alloc(&plan->base.arena, &plan->permissions, most * sizeof *plan->permissions));
    for (int s = 0; s < plan->slot_count; s++) {
        struct slot *slot = &plan->slots[s];
        slot->first_permission = count;
        if (slot->is_written)
            visit_inputs_of_writer(plan, slot, add_permission);
        count += slot->permission_count;
    }
    status_clear(); /* discard the refusals of families */
    return WEFT_STATUS_SUCCESS;
}

/* Offset in bytes from output `a` at which slot b may start, or -1 if they must not overlap. An input that the writer
   does not read may be overwritten if all its readers run earlier. */
static int64_t allowed_offset(const struct plan *plan, int a, int b) {
    const struct slot *out = &plan->slots[a], *in = &plan->slots[b];
    const struct draft *draft = &plan->draft;
    if (in->is_written)
        return -1;
    const struct permission *permission = find_permission(plan, out, in->value);
    if (permission)
        return permission->offset;
    return may_share(draft, in->value, out->value) ? 0 : -1; /* read by other steps only, which are all done */
}

/* If the input could use exactly the same memory, the message says so: the user probably intended an in-place
   operation. */
static weftStatus_t fail_overlap(const struct plan *plan, int a, int b) {
    const struct value *values = plan->draft.graph->values;
    FAIL(WEFT_STATUS_BAD_PARAM, "output %s and %s overlap in memory. Give the output memory of its own%s.",
         descriptor_label(&values[plan->slots[a].value].tensor->base),
         descriptor_label(&values[plan->slots[b].value].tensor->base),
         allowed_offset(plan, a, b) == 0 ? ", or exactly the same memory" : "");
}

/* ---- Few slots: all pairs ---------------------------------------------------------------------------------------- */

/* `end` is exclusive; an empty tensor has an empty span, which overlaps nothing. */
static struct span span_of(const struct plan *plan, void *const *values, int slot) {
    uintptr_t begin = (uintptr_t)values[plan->slots[slot].value];
    return (struct span){begin, begin + (uintptr_t)plan->slots[slot].bytes, slot};
}

/* Size of the byte range that contains all elements of a tensor after their offsets are reduced modulo `pitch`, or 0 if
   it is unknown or exceeds `pitch`. */
static int64_t bytes_within(const struct tensor *tensor, int64_t pitch) {
    int64_t element = tensor_element_bytes(tensor), bytes = element;
    const struct dtype *type = dtype_of((weftDataType_t)tensor->type);
    if (tensor->vector_count > 1 || !type || type->bits % 8)
        return 0;
    for (int64_t d = 0; d < tensor->dims.count && bytes <= pitch; d++)
        if (tensor->dims.at[d] > 1 && tensor->strides.at[d] * element % pitch)
            bytes += (tensor->dims.at[d] - 1) * tensor->strides.at[d] * element;
    return bytes <= pitch ? bytes : 0;
}

/* True if the elements of two tensors interleave without overlapping, such as two ranges of columns of one matrix:
   their offsets are disjoint modulo a stride. */
static bool are_interleaved(const struct plan *plan, const struct span *a, const struct span *b) {
    const struct value *values = plan->draft.graph->values;
    const struct tensor *x = values[plan->slots[a->slot].value].tensor, *y = values[plan->slots[b->slot].value].tensor;
    for (int64_t d = 0; d < x->dims.count; d++) {
        int64_t pitch = x->dims.at[d] > 1 ? x->strides.at[d] * tensor_element_bytes(x) : 0;
        int64_t of_x = pitch ? bytes_within(x, pitch) : 0, of_y = of_x ? bytes_within(y, pitch) : 0;
        /* Offset of y from the closest repetition of x before it. */
        int64_t ahead = of_y ? (int64_t)((b->begin - a->begin) % (uintptr_t)pitch) : 0;
        if (b->begin < a->begin && of_y)
            ahead = (pitch - (int64_t)((a->begin - b->begin) % (uintptr_t)pitch)) % pitch;
        if (of_y && ahead >= of_x && ahead + of_y <= pitch)
            return true;
    }
    return false;
}

/* The tests are ordered by cost; almost all pairs are disjoint. */
static weftStatus_t check_pair(const struct plan *plan, const struct span *a, const struct span *b) {
    bool is_disjoint = a->end <= b->begin || b->end <= a->begin;
    if (is_disjoint || a->begin == a->end || b->begin == b->end || are_interleaved(plan, a, b))
        return WEFT_STATUS_SUCCESS;
    int64_t allowed = allowed_offset(plan, a->slot, b->slot);
    return allowed >= 0 && b->begin == a->begin + (uintptr_t)allowed ? WEFT_STATUS_SUCCESS
                                                                     : fail_overlap(plan, a->slot, b->slot);
}

/* Compares each output with all slots, and each pair of outputs once. */
static weftStatus_t check_pairs(const struct plan *plan, void *const *values) {
    for (int a = 0; a < plan->slot_count; a++) {
        const struct span out = span_of(plan, values, a);
        for (int b = 0; plan->slots[a].is_written && b < plan->slot_count; b++) {
            const struct span other = span_of(plan, values, b);
            bool is_compared = plan->slots[b].is_written && b <= a;
            if (!is_compared)
                TRY(check_pair(plan, &out, &other));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Many slots: sorted spans ------------------------------------------------------------------------------------ */

/* Orders by start address; at equal addresses outputs come first, in slot order. */
static bool stands_before(const struct plan *plan, const struct span *a, const struct span *b) {
    if (a->begin != b->begin)
        return a->begin < b->begin;
    if (plan->slots[a->slot].is_written != plan->slots[b->slot].is_written)
        return plan->slots[a->slot].is_written;
    return a->slot < b->slot;
}

/* Restores the heap property below `at`; the root is the last span in order. */
static void sift_down(const struct plan *plan, struct span *spans, int at, int count) {
    for (int child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && stands_before(plan, &spans[child], &spans[child + 1]))
            child++;
        if (!stands_before(plan, &spans[at], &spans[child]))
            return;
        struct span moved = spans[at];
        spans[at] = spans[child];
        spans[child] = moved;
    }
}

/* Heap sort, because the C library's qsort may allocate memory. */
static void sort_spans(const struct plan *plan, struct span *spans, int count) {
    for (int i = count / 2; i-- > 0;)
        sift_down(plan, spans, i, count);
    for (int left = count - 1; left > 0; left--) {
        struct span last = spans[left];
        spans[left] = spans[0];
        spans[0] = last;
        sift_down(plan, spans, 0, left);
    }
}

/* A span that overlaps an output starts before it or inside it. Earlier spans are only compared if the farthest of them
   reaches the output: linear in general, quadratic if many outputs interleave. */
static weftStatus_t check_sorted(const struct plan *plan, struct span *spans) {
    const struct span *farthest = NULL; /* the earlier span with the highest end */
    int count = 0;
    for (int i = 0; i < plan->slot_count; i++)
        if (spans[i].begin != spans[i].end)
            spans[count++] = spans[i];
    sort_spans(plan, spans, count);
    for (int i = 0; i < count; i++) {
        const struct span *span = &spans[i];
        bool is_written = plan->slots[span->slot].is_written;
        for (int k = 0; is_written && farthest && farthest->end > span->begin && k < i; k++)
            TRY(check_pair(plan, span, &spans[k]));
        for (int k = i + 1; is_written && k < count && spans[k].begin < span->end; k++)
            TRY(check_pair(plan, span, &spans[k]));
        if (!farthest || span->end > farthest->end)
            farthest = span;
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t alias_check_run(const struct plan *plan, void *const *values, struct span *spans) {
    if (!spans)
        return check_pairs(plan, values);
    for (int i = 0; i < plan->slot_count; i++)
        spans[i] = span_of(plan, values, i);
    return check_sorted(plan, spans);
}
