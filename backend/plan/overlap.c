/* SPDX-License-Identifier: Apache-2.0 */
/* An output may lie between the elements of others, and overlap nothing, but an input that nobody reads any more, or
   one that the writing step reads where it writes. What a step allows is asked of its family once, when the plan is
   made. */
#include "plan/overlap.h"
#include "graph/descriptor.h"

/* ---- What is allowed --------------------------------------------------------------------------------------------- */

/* Whether `out` may lie exactly where `in` lies, as far as the steps before the one that writes `out` and those behind
   it are concerned. A step that reads `in` after `out` was written would read the output. */
static bool may_share(const struct draft *draft, int in, int out) {
    const struct value *values = draft->graph->values;
    return tensor_same_layout(values[in].tensor, values[out].tensor) &&
           !draft->is_viewed[in] && /* a view is read at other places than its own */
           draft->last_reading[in] <= draft->first_writing[out];
}

/* Where the one operation that writes `out` lets `in` lie inside it; -1: nowhere. */
static int64_t place_in_output(const struct graph *graph, int in, int out) {
    const struct descriptor *op = graph->nodes[graph->values[out].producer].op;
    bool only_reader = graph->values[in].readers == 1 && graph->values[in].read_by[0] == graph->values[out].producer;
    return only_reader && op_of(op)->place_in
               ? op_of(op)->place_in(op, graph->values[in].tensor, graph->values[out].tensor)
               : -1;
}

/* Where the step that writes `out` and reads `in` lets `in` begin; -1: nowhere near. Asked of the family first; if it
   declines, of the operation, whose kernel may leave an input where it is, as concat does. */
static int64_t ask_step(const struct draft *draft, int in, int out) {
    const struct step *step = &draft->steps[draft->first_writing[out]];
    /* The family knows in which order its kernel reads and writes; only it can allow this. */
    bool may_alias = may_share(draft, in, out) && !draft->is_viewed[out] && step->family->may_alias &&
                     step->family->may_alias(step, in, out);
    return may_alias ? 0 : place_in_output(draft->graph, in, out);
}

/* Linear over the inputs of one step. */
static const struct permission *find_permission(const struct plan *plan, const struct slot *out, int in) {
    for (int i = out->first_permission; i < out->first_permission + out->permission_count; i++)
        if (plan->permissions[i].in == in)
            return &plan->permissions[i];
    return NULL;
}

/* Calls visit (NULL: only counts) for each input of the graph that the step reads which writes a slot; an input that is
   read k times is visited k times. */
static int each_input(struct plan *plan, struct slot *out, void (*visit)(struct plan *plan, struct slot *out, int in)) {
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

/* Asked of the family once for each pair, and kept for all executions. */
static void add_permission(struct plan *plan, struct slot *out, int in) {
    if (find_permission(plan, out, in))
        return;
    plan->permissions[out->first_permission + out->permission_count++] =
        (struct permission){.in = in, .offset = ask_step(&plan->draft, in, out->value)};
}

weftStatus_t overlap_list(struct plan *plan) {
    /* Counted first, then filled in: an input that is read twice is counted twice and listed once. */
    size_t most = 0;
    int count = 0;
    for (int s = 0; s < plan->slot_count; s++)
        if (plan->slots[s].is_written)
            most += (size_t)each_input(plan, &plan->slots[s], NULL);
    TRY(arena_alloc(&plan->base.arena, &plan->permissions, most * sizeof *plan->permissions));
    for (int s = 0; s < plan->slot_count; s++) {
        struct slot *slot = &plan->slots[s];
        slot->first_permission = count;
        if (slot->is_written)
            each_input(plan, slot, add_permission);
        count += slot->permission_count;
    }
    status_clear(); /* of families that decline */
    return WEFT_STATUS_SUCCESS;
}

/* How many bytes after output `a` slot b may begin; -1: it may not overlap. Inputs that the writing step does not read
   are done with when all steps that read them come before it. */
static int64_t allowed_offset(const struct plan *plan, int a, int b) {
    const struct slot *out = &plan->slots[a], *in = &plan->slots[b];
    const struct draft *draft = &plan->draft;
    if (in->is_written)
        return -1;
    const struct permission *permission = find_permission(plan, out, in->value);
    if (permission)
        return permission->offset;
    return may_share(draft, in->value, out->value) ? 0 : -1; /* what other steps read, which are all done */
}

/* Where the same memory would do, the message says so: in place was meant, and missed. */
static weftStatus_t fail_overlap(const struct plan *plan, int a, int b) {
    const struct value *values = plan->draft.graph->values;
    FAIL(WEFT_STATUS_BAD_PARAM, "output %s and %s overlap in memory. Give the output memory of its own%s.",
         descriptor_label(&values[plan->slots[a].value].tensor->base),
         descriptor_label(&values[plan->slots[b].value].tensor->base),
         allowed_offset(plan, a, b) == 0 ? ", or exactly the same memory" : "");
}

/* ---- A few slots ------------------------------------------------------------------------------------------------- */

/* `end` is exclusive; an empty tensor has an empty span, which overlaps nothing. */
static struct span span_of(const struct plan *plan, void *const *values, int slot) {
    uintptr_t begin = (uintptr_t)values[plan->slots[slot].value];
    return (struct span){begin, begin + (uintptr_t)plan->slots[slot].bytes, slot};
}

/* Bytes that a tensor's elements stay within, where each is moved by multiples of `pitch` bytes into the first of them;
   0: this cannot be said of it. */
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

/* Whether the elements of two tensors lie between each other, as two ranges of columns of one matrix do: apart modulo
   a stride. */
static bool are_interlaced(const struct plan *plan, const struct span *a, const struct span *b) {
    const struct value *values = plan->draft.graph->values;
    const struct tensor *x = values[plan->slots[a->slot].value].tensor, *y = values[plan->slots[b->slot].value].tensor;
    for (int64_t d = 0; d < x->dims.count; d++) {
        int64_t pitch = x->dims.at[d] > 1 ? x->strides.at[d] * tensor_element_bytes(x) : 0;
        int64_t of_x = pitch ? bytes_within(x, pitch) : 0, of_y = of_x ? bytes_within(y, pitch) : 0;
        /* Where y begins behind x, in the space between two beginnings of x. */
        int64_t ahead = of_y ? (int64_t)((b->begin - a->begin) % (uintptr_t)pitch) : 0;
        if (b->begin < a->begin && of_y)
            ahead = (pitch - (int64_t)((a->begin - b->begin) % (uintptr_t)pitch)) % pitch;
        if (of_y && ahead >= of_x && ahead + of_y <= pitch)
            return true;
    }
    return false;
}

/* From the cheapest question to the dearest; nearly all pairs are apart. */
static weftStatus_t check_pair(const struct plan *plan, const struct span *a, const struct span *b) {
    bool apart = a->end <= b->begin || b->end <= a->begin;
    if (apart || a->begin == a->end || b->begin == b->end || are_interlaced(plan, a, b))
        return WEFT_STATUS_SUCCESS;
    int64_t allowed = allowed_offset(plan, a->slot, b->slot);
    return allowed >= 0 && b->begin == a->begin + (uintptr_t)allowed ? WEFT_STATUS_SUCCESS
                                                                     : fail_overlap(plan, a->slot, b->slot);
}

/* Quadratic in the outputs, with inputs as the inner loop; a pair of outputs is looked at once. */
static weftStatus_t check_pairs(const struct plan *plan, void *const *values) {
    for (int a = 0; a < plan->slot_count; a++) {
        const struct span out = span_of(plan, values, a);
        for (int b = 0; plan->slots[a].is_written && b < plan->slot_count; b++) {
            const struct span other = span_of(plan, values, b);
            bool was_seen = plan->slots[b].is_written && b <= a;
            if (!was_seen)
                TRY(check_pair(plan, &out, &other));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Many -------------------------------------------------------------------------------------------------------- */

/* By begin; of those that begin together, outputs first, in the order of the slots. */
static bool stands_before(const struct plan *plan, const struct span *a, const struct span *b) {
    if (a->begin != b->begin)
        return a->begin < b->begin;
    if (plan->slots[a->slot].is_written != plan->slots[b->slot].is_written)
        return plan->slots[a->slot].is_written;
    return a->slot < b->slot;
}

/* Restores the heap below `at`, whose root stands behind all others. */
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

/* A heap sort, as the C library's sort may allocate. */
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

/* What overlaps an output began before it, or begins inside it. Those before are asked one by one only where the
   farthest of them reaches here: quadratic where many outputs lie between each other, else linear. */
static weftStatus_t check_sorted(const struct plan *plan, struct span *spans) {
    const struct span *farthest = NULL; /* of those before */
    int count = 0;
    for (int i = 0; i < plan->slot_count; i++)
        if (spans[i].begin != spans[i].end)
            spans[count++] = spans[i];
    sort_spans(plan, spans, count);
    for (int i = 0; i < count; i++) {
        const struct span *here = &spans[i];
        bool is_written = plan->slots[here->slot].is_written;
        for (int k = 0; is_written && farthest && farthest->end > here->begin && k < i; k++)
            TRY(check_pair(plan, here, &spans[k]));
        for (int k = i + 1; is_written && k < count && spans[k].begin < here->end; k++)
            TRY(check_pair(plan, here, &spans[k]));
        if (!farthest || here->end > farthest->end)
            farthest = here;
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t overlap_check(const struct plan *plan, void *const *values, struct span *spans) {
    if (!spans)
        return check_pairs(plan, values);
    for (int i = 0; i < plan->slot_count; i++)
        spans[i] = span_of(plan, values, i);
    return check_sorted(plan, spans);
}
