/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/ops/attention_indices.h"

#include "base/number.h"

#include <string.h>

/* ---- Page tables ---- */

int64_t attention_table_reach(const struct tensor *table, const struct tensor *container) {
    int64_t reach;
    return __builtin_mul_overflow(table->dims.at[2], container->dims.at[2], &reach) ? INT64_MAX : reach;
}

/* Without a table, the keys of the tensor; with a table, those that it reaches; the smaller number if k and v have
   tables. */
int64_t attention_keys(const struct attention *a) {
    if (a->most_keys && attention_is_paged(a))
        return a->most_keys;
    int64_t of_k = a->k_table ? attention_table_reach(a->k_table, a->k) : a->k->dims.at[2];
    int64_t of_v = a->v_table ? attention_table_reach(a->v_table, a->v) : a->v->dims.at[2];
    int64_t keys = !a->k_table ? of_k : !a->v_table ? of_v : min64(of_k, of_v);
    /* cuDNN's attention with a sub-graph has no attribute for the number: the scores of the sub-graph have it. */
    const struct score_modifier *m = &a->modifier;
    const struct dims *scores = m->graph && m->input >= 0 ? &m->graph->values[m->input].tensor->dims : NULL;
    return attention_is_paged(a) && scores && scores->count == 4 ? min64(keys, scores->at[3]) : keys;
}

/* ---- Operands that may be ragged ---- */

/* By the keys of their rows, which are the same in both operations. Statistics and results are ragged if queries
   are. */
static const struct {
    const char *key;
    bool has_keys, is_table;
} ragged_keys[] = {
    {"q", false, false},
    {"k", true, false},
    {"v", true, false},
    {"o", false, false},
    {"stats", false, false},
    {"score_max", false, false},
    {"score_sum_exp", false, false},
    {"dO", false, false},
    {"dQ", false, false},
    {"dK", true, false},
    {"dV", true, false},
    {"q_T", false, false},
    {"k_T", true, false},
    {"dO_T", false, false},
    {"dO_f16", false, false},
    {"paged_attention_k_table", true, true},
    {"paged_attention_v_table", true, true},
};
_Static_assert(sizeof ragged_keys / sizeof *ragged_keys <= ATTENTION_RAGGED_MAX, "lists have room for all");

/* Index in the table above for a row's key, or -1. */
static int find_ragged_key(const struct row *row) {
    for (int i = 0; i < (int)(sizeof ragged_keys / sizeof *ragged_keys); i++)
        if (!strcmp(ragged_keys[i].key, row->key))
            return i;
    return -1;
}

struct ragged_list {
    const struct attention *a;
    struct attention_ragged *items;
    int count;
};

static weftStatus_t add_ragged(void *context, const struct row *row, struct tensor *tensor) {
    struct ragged_list *list = context;
    int i = tensor->ragged_offset ? find_ragged_key(row) : -1;
    if (i < 0)
        return WEFT_STATUS_SUCCESS;
    struct attention_ragged *item = &list->items[list->count++];
    *item = (struct attention_ragged){tensor, row->key, ragged_keys[i].has_keys, 1};
    if (ragged_keys[i].is_table)
        item->page = (tensor == list->a->k_table ? list->a->k : list->a->v)->dims.at[2];
    return WEFT_STATUS_SUCCESS;
}

int attention_ragged_operands(const struct descriptor *op, struct attention_ragged list[ATTENTION_RAGGED_MAX]) {
    struct ragged_list ragged = {.a = attention_of(op), .items = list};
    (void)op_each_operand(op, add_ragged, &ragged); /* add_ragged never fails */
    return ragged.count;
}

/* ---- Lengths ---- */

int64_t attention_length(const struct view *lengths, const struct view *sums, int64_t batch, int64_t all) {
    int64_t length = lengths->data ? view_load_int(lengths, (const int64_t[]){batch, 0, 0, 0}) : all;
    /* Cumulative lengths: the difference of two adjacent entries. */
    if (sums->data)
        length = view_load_int(sums, (const int64_t[]){batch + 1, 0, 0, 0}) -
                 view_load_int(sums, (const int64_t[]){batch, 0, 0, 0});
    return length;
}

/* ---- Checks of the graph ---- */

struct ragged_check {
    const struct descriptor *op;
    const struct attention *a;
};

static weftStatus_t check_ragged_operand(void *context, const struct row *row, struct tensor *tensor) {
    const struct ragged_check *check = context;
    const struct attention *a = check->a;
    const char *label = descriptor_label(check->op);
    if (!tensor->ragged_offset)
        return WEFT_STATUS_SUCCESS;
    int i = find_ragged_key(row);
    if (i < 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s, %s has ragged offsets. Give a padded tensor.", label, row->key,
             descriptor_label(&tensor->base));
    const struct tensor *offsets = tensor->ragged_offset;
    TRY(check_dims(check->op, row->key, offsets, 4, (const int64_t[]){a->q->dims.at[0] + 1, 1, 1, 1}));
    if (!dtype_is_integer((weftDataType_t)offsets->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has ragged offsets of data type %s. Use INT32 or INT64.", label, row->key,
             dtype_of((weftDataType_t)offsets->type)->name);
    /* The planner lays out intermediate tensors without ragged offsets. Pages are located by their table. */
    bool is_paged = ragged_keys[i].has_keys && !ragged_keys[i].is_table && (a->k_table || a->v_table);
    if (tensor->is_virtual || is_paged)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s has ragged offsets, and %s. Give a padded tensor.", label,
             row->key, tensor->is_virtual ? "is virtual" : "there are page tables");
    const char *lengths = ragged_keys[i].has_keys ? "seq_len_kv" : "seq_len_q";
    if (ragged_keys[i].has_keys ? !a->seq_len_kv && !a->cu_seq_len_kv : !a->seq_len_q && !a->cu_seq_len_q)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has ragged offsets, but there is no %s. Give it, or cu_%s.", label,
             row->key, lengths, lengths);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t attention_check_ragged(const struct descriptor *op, const struct attention *a) {
    struct ragged_check check = {op, a};
    return op_each_operand(op, check_ragged_operand, &check);
}

/* ---- Checks of the numbers in memory ---- */

/* Validates the length in use of one batch entry. */
static weftStatus_t check_length(const struct descriptor *op, const char *side, const struct bindings *bindings,
                                 const struct tensor *lengths, const struct tensor *sums, int64_t batch, int64_t all,
                                 int64_t *length) {
    struct view of_lengths = view_of(bindings, lengths), of_sums = view_of(bindings, sums);
    *length = all;
    if (of_lengths.data) {
        *length = view_load_int(&of_lengths, (const int64_t[]){batch, 0, 0, 0});
        if (*length < 0 || *length > all)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: entry %lld of seq_len_%s, %s, is out of range: expected 0..%lld, got %lld. Correct the contents "
                 "of the tensor.",
                 descriptor_label(op), (long long)batch, side, descriptor_label(&lengths->base), (long long)all,
                 (long long)*length);
    }
    if (of_sums.data) {
        int64_t first = view_load_int(&of_sums, (const int64_t[]){batch, 0, 0, 0});
        int64_t last = view_load_int(&of_sums, (const int64_t[]){batch + 1, 0, 0, 0});
        if (__builtin_sub_overflow(last, first, length) || *length < 0 || *length > all)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: entries %lld and %lld of cu_seq_len_%s, %s, are out of range: expected a length of 0..%lld, got "
                 "%lld and %lld. Correct the contents of the tensor.",
                 descriptor_label(op), (long long)batch, (long long)batch + 1, side, descriptor_label(&sums->base),
                 (long long)all, (long long)first, (long long)last);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Validates one batch entry of a ragged tensor, with `used` queries or keys in use. */
static weftStatus_t check_entry(const struct descriptor *op, const struct attention_ragged *ragged,
                                const struct bindings *bindings, int64_t batch, int64_t used) {
    const struct tensor *tensor = ragged->tensor, *offsets = tensor->ragged_offset;
    struct view view = view_of(bindings, offsets);
    if (!view.data)
        return WEFT_STATUS_SUCCESS;
    struct ragged_entries entries = tensor_ragged_entries(tensor);
    int64_t multiplier = tensor->ragged_multiplier, entry_count = offsets->dims.at[0] - 1;
    int64_t first = view_load_int(&view, (const int64_t[]){batch, 0, 0, 0});
    int64_t end = view_load_int(&view, (const int64_t[]){entry_count, 0, 0, 0});
    if (end < 0 || end > entries.most)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: entry %lld of the ragged offsets of %s, %s, is out of range: it is the end of %s, expected 0..%lld, "
             "got %lld. Correct the contents of the tensor, or describe more memory by the batch stride of %s.",
             descriptor_label(op), (long long)entry_count, ragged->key, descriptor_label(&offsets->base), ragged->key,
             (long long)entries.most, (long long)end, ragged->key);
    /* The largest offset for which the rows in use are within the tensor. */
    int64_t rows = divide_up(used, ragged->page), room = end * multiplier;
    if (rows)
        room = min64(room - entries.width, entries.latest) - (rows - 1) * entries.row;
    if (room < 0)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: entry %lld of the ragged offsets of %s, %s, is out of range: it is the end of %s, which has no room "
             "for the %lld row%s of batch entry %lld, got %lld. Correct the contents of the tensor.",
             descriptor_label(op), (long long)entry_count, ragged->key, descriptor_label(&offsets->base), ragged->key,
             (long long)rows, plural(rows), (long long)batch, (long long)end);
    if (first < 0 || first > room / multiplier)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: entry %lld of the ragged offsets of %s, %s, is out of range: expected 0..%lld for %lld row%s before "
             "the end at %lld, got %lld. Correct the contents of the tensor.",
             descriptor_label(op), (long long)batch, ragged->key, descriptor_label(&offsets->base),
             (long long)(room / multiplier), (long long)rows, plural(rows), (long long)end, (long long)first);
    return WEFT_STATUS_SUCCESS;
}

/* Validates the entries of a page table that the keys in use need. Entries after them may have any value. */
static weftStatus_t check_table(const struct descriptor *op, const char *key, const struct tensor *table,
                                const struct tensor *container, const struct bindings *bindings, int64_t batch,
                                int64_t keys) {
    struct view view = view_of(bindings, table);
    if (!view.data)
        return WEFT_STATUS_SUCCESS;
    int64_t count = divide_up(keys, container->dims.at[2]);
    int64_t first = table->dims.at[0] == 1 ? 0 : batch * table->strides.at[0];
    int64_t step = table->dims.at[2] == 1 ? 0 : table->strides.at[2];
    if (table->ragged_offset) {
        struct view offsets = view_of(bindings, table->ragged_offset);
        first = view_load_int(&offsets, (const int64_t[]){batch, 0, 0, 0}) * table->ragged_multiplier;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t page = dtype_load_i64(view.type, view.data, first + i * step);
        if (page < 0 || page >= container->dims.at[0])
            FAIL(
                WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                "%s: page %lld of batch entry %lld in %s, %s, is out of range: expected 0..%lld, got %lld. Correct the "
                "contents of the tensor.",
                descriptor_label(op), (long long)i, (long long)batch, key, descriptor_label(&table->base),
                (long long)container->dims.at[0] - 1, (long long)page);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Lengths first: they determine which offsets and pages are used. */
weftStatus_t attention_check_indices(const struct descriptor *op, const struct bindings *bindings) {
    const struct attention *a = attention_of(op);
    struct attention_ragged ragged[ATTENTION_RAGGED_MAX];
    int count = attention_ragged_operands(op, ragged);
    for (int64_t batch = 0; batch < a->q->dims.at[0]; batch++) {
        int64_t queries, keys;
        TRY(check_length(op, "q", bindings, a->seq_len_q, a->cu_seq_len_q, batch, a->q->dims.at[2], &queries));
        TRY(check_length(op, "kv", bindings, a->seq_len_kv, a->cu_seq_len_kv, batch, attention_keys(a), &keys));
        for (int i = 0; i < count; i++)
            TRY(check_entry(op, &ragged[i], bindings, batch, ragged[i].has_keys ? keys : queries));
        TRY(check_table(op, "paged_attention_k_table", a->k_table, a->k, bindings, batch, keys));
        TRY(check_table(op, "paged_attention_v_table", a->v_table, a->v, bindings, batch, keys));
    }
    return WEFT_STATUS_SUCCESS;
}
