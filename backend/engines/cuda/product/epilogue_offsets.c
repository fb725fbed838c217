/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of epilogue operands: their modes, limits and offsets, for all functions over the same indices. */
#include "engines/cuda/product/contraction.h"

/* True if the results of some phase or image end before the extent of their modes. */
static bool is_limited(const struct epilogue *epilogue) {
    for (int k = 0; k < epilogue->count; k++)
        if (epilogue->at[k].role == EPILOGUE_LIMIT)
            return true;
    return false;
}

/* True if operand k is the same for all rows; if the phases of the result end at different positions, also for all
   phases. A kernel then loads it once for all rows of a tile. */
bool epilogue_is_per_column(const struct epilogue *epilogue, int k) {
    for (int index = is_limited(epilogue) ? BATCH : ROW; index <= ROW; index++)
        for (int d = 0; d < epilogue->mode_count[index]; d++)
            if (epilogue->at[k].strides[index][d] != 0)
                return false;
    return true;
}

/* Emits fields of the arguments: addresses, bounds, and the divisors and strides of modes. */
void epilogue_emit_arguments(struct kernel_source *source, const struct epilogue *epilogue) {
    for (int index = BATCH; index < K; index++)
        for (int d = 1; d < epilogue->mode_count[index]; d++)
            emit_divisor(source, epilogue->extents[index][d], named("f%c%d", index_letters[index], d).text);
    for (int k = 0; k < epilogue->count; k++) {
        const struct epilogue_operand *operand = &epilogue->at[k];
        /* Names: f<operand> is the address, f<operand>_<index><mode> the stride along a mode. Strides of 0 and 1 are
           part of the text. */
        if (operand->role == EPILOGUE_LIMIT)
            emit_number(source, operand->bound, named("f%d_bound", k).text);
        else if (operand->role != EPILOGUE_INDEX)
            emit_pointer(source, operand->type, operand->value, 0, named("f%d", k).text);
        for (int index = BATCH; index < K; index++)
            for (int d = 0; d < epilogue->mode_count[index]; d++)
                if (operand->strides[index][d] != 0 && operand->strides[index][d] != 1)
                    emit_number(source, operand->strides[index][d], named("f%d_%c%d", k, index_letters[index], d).text);
    }
}

/* The slowest mode, 0, needs no divisor: it is the remaining quotient. */
void epilogue_emit_modes(struct kernel_source *source, const struct epilogue *epilogue) {
    for (int index = BATCH; index < K; index++) {
        char prefix[] = {'f', index_letters[index], 0}, value[] = {index_letters[index], 0};
        emit_split(source, prefix, epilogue->mode_count[index], value, NULL);
    }
}

/* The limited coordinate is the operand's offset, because its strides are coordinate increments (add_coordinate). */
void epilogue_emit_limits(struct kernel_source *source, const struct epilogue *epilogue, bool per_column,
                          const char *out) {
    for (int k = 0; k < epilogue->count; k++)
        if (epilogue->at[k].role == EPILOGUE_LIMIT && epilogue_is_per_column(epilogue, k) == per_column) {
            text_add(&source->code, "    if (0");
            epilogue_emit_offset(source, epilogue, k);
            text_add(&source->code, " >= p.f%d_bound) %s;\n", k, out);
        }
}

void epilogue_emit_all_limits(struct kernel_source *source, const struct epilogue *epilogue, const char *out) {
    epilogue_emit_limits(source, epilogue, true, out);
    epilogue_emit_limits(source, epilogue, false, out);
}

/* Emits the sum of modes times strides. */
void epilogue_emit_offset(struct kernel_source *source, const struct epilogue *epilogue, int k) {
    for (int index = BATCH; index < K; index++)
        for (int d = 0; d < epilogue->mode_count[index]; d++)
            emit_term(source, named("f%c%d", index_letters[index], d).text, epilogue->at[k].strides[index][d],
                      named("f%d_%c%d", k, index_letters[index], d).text);
}
