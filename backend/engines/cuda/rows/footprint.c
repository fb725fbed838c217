/* SPDX-License-Identifier: Apache-2.0 */
/* On-chip footprint of a row schedule: which operands stay resident between passes, how many bytes they occupy, and
   which of them asynchronous copies can load. */
#include "base/number.h"
#include "engines/cuda/rows/schedule.h"

#include <string.h>

enum { EXCHANGE_BYTES = 40960 }; /* partial results per block; a kernel has 48 KiB of shared memory without opting in */

/* ---- Residency --------------------------------------------------------------------------------------------------- */

/* Only operands that differ between rows can be resident: operands that all rows share are loaded again (or kept by
   keeps_broadcast). Indices and stored results never qualify. */
bool schedule_is_resident(const struct schedule *s, int k) {
    const struct operand *operand = &s->nest.operands[k];
    if (s->memory.scheme == MEMORY_STREAMED || operand->is_store || !schedule_uses_memory(s, k) ||
        !rows_find(s->rows, operand->value)->spans)
        return false;
    if (s->memory.scheme == MEMORY_CHANNELS)
        return s->memory.accumulated >> k & 1;
    for (int i = 0; i < s->nest.row_dims; i++)
        if (operand->strides[i])
            return true;
    return s->nest.is_columns;
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* An operand that broadcasts along the contiguous dim contributes one element per vector. */
int64_t schedule_vector_bytes(const struct schedule *s, int k) {
    const struct operand *operand = &s->nest.operands[k];
    return dtype_bytes(operand->type, 1) * (operand->strides[schedule_fast_dim(s)] ? s->vectors.width : 1);
}

/* At least 1, because callers divide by the result. */
int64_t schedule_resident_bytes(const struct schedule *s) {
    int64_t bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        bytes += schedule_is_resident(s, k) ? schedule_vector_bytes(s, k) : 0;
    return bytes ? bytes : 1;
}

/* Bytes of one vector of the operands that all rows share, such as scale and bias. */
int64_t schedule_broadcast_bytes(const struct schedule *s) {
    int64_t bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_uses_memory(s, k) && !s->nest.operands[k].is_store && !schedule_is_resident(s, k) &&
            rows_find(s->rows, s->nest.operands[k].value)->spans)
            bytes += schedule_vector_bytes(s, k);
    return bytes;
}

int64_t schedule_row_bytes(const struct schedule *s) {
    return schedule_resident_bytes(s) * s->memory.steps * s->threads.group;
}

/* 0 if the scheme has no stages. */
int64_t schedule_shared_bytes(const struct schedule *s) {
    int64_t before = s->memory.scheme == MEMORY_STAGED ? STAGES_BEGIN : 0;
    return schedule_row_bytes(s) * s->threads.across * s->memory.stages + before;
}

/* Bytes of a reduction's partial result, as declared in core/reduce.cuh: moments also count elements. */
static int64_t partial_bytes(const struct term *term) {
    return (strcmp(term->type, "float") == 0 ? 4 : 8) * (term->opcode == OPCODE_MOMENTS ? 3 : term->names);
}

/* Maximum over the passes; all passes share the same memory. */
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
    return round_up(most, 8); /* keeps doubles aligned */
}

int64_t schedule_slots(const struct schedule *s) { return row_space_rows(&s->rows->space) + s->overlap.elements; }

/* A group wider than a warp stores one partial result per warp and row, plus the combined results. Rows that are not
   interleaved need only a few numbers per warp, which always fit. */
bool schedule_exchange_fits(const struct schedule *s) {
    if (!s->nest.is_columns)
        return true;
    int in_warp = s->threads.across >= 32 ? 1 : 32 / s->threads.across, warps = s->threads.group / in_warp;
    int64_t rows = (int64_t)s->vectors.width * s->threads.across;
    return warps <= 1 || (warps + 1) * rows * schedule_partial_bytes(s) <= EXCHANGE_BYTES;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* True if each row is contiguous in memory and a multiple of 16 bytes. Bulk copies (cp.async.bulk) need sm_90;
   addresses and sizes must be multiples of 16 bytes. */
bool schedule_copies_rows(const struct schedule *s, const struct device *device) {
    bool is_supported = device->cuda.major >= 9 && s->nest.rank == s->nest.row_dims + 1 && s->passes.closed > 0,
         any = false;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_is_resident(s, k)) {
            const struct operand *operand = &s->nest.operands[k];
            any = true;
            bool is_one_piece = !operand->parts || !s->nest.operands[operand->coordinate].strides[s->nest.row_dims];
            is_supported = is_supported && operand->strides[s->nest.row_dims] == 1 &&
                           schedule_vector_bytes(s, k) % 16 == 0 && operand->memory >= 0 && is_one_piece;
        }
    return is_supported && any;
}

/* True if all vectors have at least 4 bytes. cp.async needs sm_80 and copies 4, 8 or 16 bytes. */
bool schedule_copies_vectors(const struct schedule *s, const struct device *device) {
    bool is_supported = device->cuda.major >= 8 && s->nest.rank == s->nest.row_dims + 1;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_is_resident(s, k))
            is_supported = is_supported && schedule_vector_bytes(s, k) >= 4 &&
                           s->nest.operands[k].strides[schedule_fast_dim(s)] <= 1;
    return is_supported;
}
