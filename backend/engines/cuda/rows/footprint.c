/* SPDX-License-Identifier: Apache-2.0 */
/* What of a row stays on chip between its passes, in bytes, and what copies can fetch of it. */
#include "base/number.h"
#include "engines/cuda/rows/schedule.h"

#include <string.h>

enum { EXCHANGE_BYTES = 40960 }; /* of a block's partial results, of the 48 KiB that a kernel has without asking */

/* ---- What stays -------------------------------------------------------------------------------------------------- */

/* Elements that differ from row to row: what all rows read alike is loaded again, or stays by keeps_broadcast. Indices
   and stores have nothing to stay. */
bool schedule_keeps(const struct schedule *s, int k) {
    const struct operand *operand = &s->nest.operands[k];
    if (s->memory.scheme == MEMORY_STREAMED || operand->is_store || !schedule_moves(s, k) ||
        !rows_find(s->rows, operand->value)->spans)
        return false;
    if (s->memory.scheme == MEMORY_CHANNELS)
        return s->memory.accumulated >> k & 1;
    for (int i = 0; i < s->nest.row_dims; i++)
        if (operand->strides[i])
            return true;
    return s->nest.is_columns;
}

/* Only what a later pass than the first needs again. */
bool schedule_keeps_term(const struct schedule *s, const struct term *term) {
    return s->memory.keeps_weights && term->opcode == OPCODE_WEIGHT && term->kind == TERM_FORMULA &&
           term->stage < s->passes.storing;
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* Operands that broadcast along the fast dim have one element in a vector. */
int64_t schedule_vector_bytes(const struct schedule *s, int k) {
    const struct operand *operand = &s->nest.operands[k];
    return dtype_bytes(operand->type, 1) * (operand->strides[schedule_fast_dim(s)] ? s->vectors.width : 1);
}

/* 1 where nothing stays: callers divide by it. */
int64_t schedule_kept_bytes(const struct schedule *s) {
    int64_t bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        bytes += schedule_keeps(s, k) ? schedule_vector_bytes(s, k) : 0;
    return bytes ? bytes : 1;
}

/* Scale and bias, for instance: elements of the row that all rows share. */
int64_t schedule_broadcast_bytes(const struct schedule *s) {
    int64_t bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_moves(s, k) && !s->nest.operands[k].is_store && !schedule_keeps(s, k) &&
            rows_find(s->rows, s->nest.operands[k].value)->spans)
            bytes += schedule_vector_bytes(s, k);
    return bytes;
}

int64_t schedule_row_bytes(const struct schedule *s) {
    return schedule_kept_bytes(s) * s->memory.steps * s->threads.group;
}

/* 0 where the scheme has no stages. */
int64_t schedule_shared_bytes(const struct schedule *s) {
    int64_t before = s->memory.scheme == MEMORY_STAGED ? STAGES_BEGIN : 0;
    return schedule_row_bytes(s) * s->threads.across * s->memory.stages + before;
}

/* Bytes of a reduction's partial result, as core/reduce.cuh has it: moments count elements beside their two numbers. */
static int64_t partial_bytes(const struct term *term) {
    return (strcmp(term->type, "float") == 0 ? 4 : 8) * (term->opcode == OPCODE_MOMENTS ? 3 : term->names);
}

/* Of the pass whose reductions take most: passes reuse the same memory. */
int64_t schedule_partial_bytes(const struct schedule *s) {
    int64_t most = 0;
    for (int pass = 0; pass < s->passes.closed; pass++) {
        int64_t bytes = 0;
        for (int i = 0; i < s->rows->term_count; i++) {
            const struct term *term = &s->rows->terms[i];
            if (term->is_needed && term_closes_pass(term) && term->stage == pass + 1)
                bytes += partial_bytes(term);
        }
        most = bytes > most ? bytes : most;
    }
    return round_up(most, 8); /* doubles among them are aligned */
}

int64_t schedule_slots(const struct schedule *s) { return row_space_rows(&s->rows->space) + s->overlap.elements; }

/* Groups of more than a warp leave theirs for each row, and the joined ones beside them. Rows one behind the other
   reduce in a few numbers for each warp, which always fit. */
bool schedule_exchange_fits(const struct schedule *s) {
    if (!s->nest.is_columns)
        return true;
    int in_warp = s->threads.across >= 32 ? 1 : 32 / s->threads.across, warps = s->threads.group / in_warp;
    int64_t rows = (int64_t)s->vectors.width * s->threads.across;
    return warps <= 1 || (warps + 1) * rows * schedule_partial_bytes(s) <= EXCHANGE_BYTES;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Each row whole in memory, in pieces of 16 bytes. Bulk copies (cp.async.bulk) are of sm_90 and up, and move multiples
   of 16 bytes between multiples of 16. */
bool schedule_copies_rows(const struct schedule *s, const struct device *device) {
    bool can = device->cuda.major >= 9 && s->nest.rank == s->nest.row_dims + 1 && s->passes.closed > 0, any = false;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_keeps(s, k)) {
            const struct operand *operand = &s->nest.operands[k];
            any = true;
            bool is_one_piece = !operand->parts || !s->nest.operands[operand->coordinate].strides[s->nest.row_dims];
            can = can && operand->strides[s->nest.row_dims] == 1 && schedule_vector_bytes(s, k) % 16 == 0 &&
                  operand->memory >= 0 && is_one_piece;
        }
    return can && any;
}

/* In pieces of 4 bytes or more. cp.async is of sm_80 and up, and moves 4, 8 or 16 bytes. */
bool schedule_copies_vectors(const struct schedule *s, const struct device *device) {
    bool can = device->cuda.major >= 8 && s->nest.rank == s->nest.row_dims + 1;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_keeps(s, k))
            can = can && schedule_vector_bytes(s, k) >= 4 && s->nest.operands[k].strides[schedule_fast_dim(s)] <= 1;
    return can;
}
