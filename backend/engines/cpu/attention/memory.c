/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/attention/memory.h"

#include "base/number.h"

enum { AHEAD = 16 }; /* prefetch distance in rows */

/* Returns 0 for a dimension of extent 1, whose index is ignored. */
static int64_t step_of(const struct tensor *tensor, int dim) {
    return tensor->dims.at[dim] == 1 ? 0 : tensor->strides.at[dim];
}

/* Ragged entries start at the given offsets. */
static int64_t entry_offset(const struct bindings *bindings, const struct tensor *tensor, int64_t batch) {
    if (!tensor->ragged_offset)
        return batch * step_of(tensor, 0);
    struct view offsets = view_of(bindings, tensor->ragged_offset);
    return view_load_int(&offsets, (const int64_t[]){batch, 0, 0, 0}) * tensor->ragged_multiplier;
}

struct rows rows_of(const struct bindings *bindings, const struct tensor *tensor, const struct tensor *table,
                    int64_t batch, int64_t head) {
    if (!tensor)
        return (struct rows){0};
    struct view view = view_of(bindings, tensor);
    struct rows rows = {.base = view.data,
                        .type = view.type,
                        .bits = dtype_of(view.type)->bits,
                        .first = head * step_of(tensor, 1),
                        .stride = step_of(tensor, 2),
                        .step = step_of(tensor, 3),
                        .is_ragged = tensor->ragged_offset};
    if (!view.data)
        return rows;
    if (table) {
        rows.table = view_of(bindings, table);
        rows.table_first = rows.table.data ? entry_offset(bindings, table, batch) : 0;
        rows.table_step = step_of(table, 2);
        rows.page_rows = tensor->dims.at[2], rows.page_stride = step_of(tensor, 0);
    } else {
        rows.first += entry_offset(bindings, tensor, batch);
    }
    return rows;
}

static int64_t row_offset(const struct rows *rows, int64_t row) {
    if (!rows->table.data)
        return rows->first + row * rows->stride;
    int64_t entry = rows->table_first + row / rows->page_rows * rows->table_step;
    int64_t page = dtype_load_i64(rows->table.type, rows->table.data, entry);
    return rows->first + page * rows->page_stride + row % rows->page_rows * rows->stride;
}

const void *rows_at(const struct rows *rows, int64_t row) {
    return (const char *)rows->base + row_offset(rows, row) * rows->bits / 8;
}

void rows_fetch(const struct rows *rows, int64_t row, int64_t count, int64_t depth, int64_t part, int64_t parts) {
    const int64_t line = 64, bytes = depth * rows->bits / 8;
    for (int64_t i = part * count / parts; rows->step == 1 && i < (part + 1) * count / parts; i++) {
        const char *from = rows_at(rows, row + i);
        for (int64_t byte = 0; byte < bytes; byte += line)
            __builtin_prefetch(from + byte, 0, 2);
    }
}

void rows_load(const struct rows *rows, int64_t row, int64_t count, int64_t depth, float *to, int64_t ld) {
    for (int64_t i = 0; i < count; i++, to += ld) {
        if (i % AHEAD == 0)
            rows_fetch(rows, row + i, min64(2 * AHEAD, count - i), depth, 0, 1);
        int64_t offset = row_offset(rows, row + i);
        if (rows->step == 1 || depth == 1)
            dtype_to_f32(to, rows->type, rows->base, offset, depth);
        for (int64_t d = 0; rows->step != 1 && depth > 1 && d < depth; d++)
            dtype_to_f32(to + d, rows->type, rows->base, offset + d * rows->step, 1);
    }
}

/* User memory may be misaligned. */
bool rows_are_in_place(const struct rows *rows) {
    bool is_float = rows->type == WEFT_DATA_FLOAT && (uintptr_t)rows->base % sizeof(float) == 0;
    return (is_float || rows->type == WEFT_DATA_BFLOAT16) && rows->step == 1 && !rows->table.data;
}

void rows_store(const struct rows *rows, int64_t row, int64_t used, int64_t depth, const float *from) {
    if (!rows->base || (rows->is_ragged && row >= used))
        return;
    int64_t offset = row_offset(rows, row);
    if (rows->step == 1)
        dtype_from_f32(rows->type, rows->base, offset, from, depth);
    for (int64_t d = 0; rows->step != 1 && d < depth; d++)
        dtype_from_f32(rows->type, rows->base, offset + d * rows->step, from + d, 1);
}
