/* SPDX-License-Identifier: Apache-2.0 */
/* The reference family: one operation at a time, from the definition that the operation itself provides, in double
   precision and any layout. It is the last resort of every CPU engine and the oracle of the tests, so it is simple
   rather than fast. */
#include "engines/cpu/families.h"

/* Floating-point operations per second of most references: plain loops over strides, one element at a time. Operations
   that are much faster or slower declare it (reference_rate). */
static const double RATE = 5e7, START_SECONDS = 1e-6; /* the start time that other families assume, too */

/* Accepts every single operation of any type: what cannot be computed was refused when the operation was finalized. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    (void)device;
    if (region->count != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "runs one operation at a time, got %d", region->count);
    const struct descriptor *op = region_node(region, 0)->op;
    offer->seconds = START_SECONDS + op_flops(op) / (op_of(op)->reference_rate > 0 ? op_of(op)->reference_rate : RATE);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs, (void)arena;
    const struct descriptor *op = region_node(&step->region, 0)->op;
    /* Bytes of intermediate values, such as a softmax that is read twice. */
    step->workspace_bytes = op_of(op)->scratch_bytes ? op_of(op)->scratch_bytes(op) : 0;
    return WEFT_STATUS_SUCCESS;
}

/* Runs on the calling thread: the CPU has no streams. */
static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    const struct descriptor *op = region_node(&step->region, 0)->op;
    struct bindings bindings = {.graph = step->region.graph, .values = values, .scratch = workspace};
    op_of(op)->reference(op, &bindings);
    return WEFT_STATUS_SUCCESS;
}

/* True if a space-separated list contains a word. `word` ends at a space or a NUL, as keys in rows do. */
static bool list_has(const char *list, const char *word) {
    size_t length = 0;
    for (const char *at = word; *at && *at != ' '; at++)
        length++;
    for (const char *at = list; at && *at;) {
        size_t word_length = 0;
        while (at[word_length] && at[word_length] != ' ')
            word_length++;
        bool same = word_length == length;
        for (size_t i = 0; same && i < length; i++)
            same = at[i] == word[i];
        if (same)
            return true;
        at += word_length + (at[word_length] == ' ');
    }
    return false;
}

/* Follows the operation's schema: an output row lists the inputs that it may overwrite. */
static bool may_alias(const struct step *step, int in, int out) {
    const struct region *region = &step->region;
    const struct descriptor *op = region_node(region, 0)->op;
    const struct tensor *from = region->graph->values[in].tensor, *to = region->graph->values[out].tensor;
    /* `allowed`: keys of the inputs that the output may overwrite, or NULL. */
    const char *allowed = NULL;
    bool listed = true, reads = false;
    for (int i = 0; i < op->schema->row_count; i++)
        if (row_tensor(op, &op->schema->rows[i]) == to && op->schema->rows[i].in_place)
            allowed = op->schema->rows[i].in_place;
    /* If a tensor is several inputs of the operation, each of these rows must be on the list. */
    for (int i = 0; i < op->schema->row_count; i++) {
        const struct row *row = &op->schema->rows[i];
        if (op_role(op, row) != ROLE_INPUT || row_tensor(op, row) != from)
            continue;
        reads = true;
        listed = listed && list_has(allowed, row->key);
    }
    return reads && listed && tensor_same_layout(from, to);
}

const struct family cpu_reference = {
    .name = "cpu.reference",
    .is_last_resort = true,
    .doc = "the operation's definition, in double precision",
    .accepts = accepts,
    .build = build,
    .run = run,
    .may_alias = may_alias,
};
