/* SPDX-License-Identifier: Apache-2.0 */
/* Where the operands behind the sum lie: their digits, limits and offsets, for all functions over the same indices. */
#include "engines/cuda/product/contraction.h"

static bool is_limited(const struct finish *finish) {
    for (int k = 0; k < finish->count; k++)
        if (finish->at[k].role == FINISH_LIMIT)
            return true;
    return false;
}

/* Whether finisher k is the same in all rows. Of a result whose phases end at different places, in all phases. */
bool finish_is_of_column(const struct finish *finish, int k) {
    for (int index = is_limited(finish) ? BATCH : ROW; index <= ROW; index++)
        for (int d = 0; d < finish->digit_count[index]; d++)
            if (finish->at[k].strides[index][d] != 0)
                return false;
    return true;
}

/* Fields of the arguments: addresses, bounds, what digits are split by and multiplied with. */
void finish_print_arguments(struct kernel_print *print, const struct finish *finish) {
    for (int index = BATCH; index < DEPTH; index++)
        for (int d = 1; d < finish->digit_count[index]; d++)
            print_divisor(print, finish->extents[index][d], named("f%c%d", index_letters[index], d).text);
    for (int k = 0; k < finish->count; k++) {
        const struct finisher *finisher = &finish->at[k];
        if (finisher->role == FINISH_LIMIT)
            print_number(print, finisher->bound, named("f%d_bound", k).text);
        else if (finisher->role != FINISH_INDEX)
            print_pointer(print, finisher->type, finisher->value, 0, named("f%d", k).text);
        for (int index = BATCH; index < DEPTH; index++)
            for (int d = 0; d < finish->digit_count[index]; d++)
                if (finisher->strides[index][d] != 0 && finisher->strides[index][d] != 1)
                    print_number(print, finisher->strides[index][d],
                                 named("f%d_%c%d", k, index_letters[index], d).text);
    }
}

void finish_print_digits(struct kernel_print *print, const struct finish *finish) {
    for (int index = BATCH; index < DEPTH; index++) {
        char prefix[] = {'f', index_letters[index], 0}, value[] = {index_letters[index], 0};
        print_split(print, prefix, finish->digit_count[index], value, NULL);
    }
}

void finish_print_limits(struct kernel_print *print, const struct finish *finish, bool of_column, const char *out) {
    for (int k = 0; k < finish->count; k++)
        if (finish->at[k].role == FINISH_LIMIT && finish_is_of_column(finish, k) == of_column) {
            text_add(&print->code, "    if (0");
            finish_print_offset(print, finish, k);
            text_add(&print->code, " >= p.f%d_bound) %s;\n", k, out);
        }
}

void finish_print_all_limits(struct kernel_print *print, const struct finish *finish, const char *out) {
    finish_print_limits(print, finish, true, out);
    finish_print_limits(print, finish, false, out);
}

/* The sum of digits times strides. */
void finish_print_offset(struct kernel_print *print, const struct finish *finish, int k) {
    for (int index = BATCH; index < DEPTH; index++)
        for (int d = 0; d < finish->digit_count[index]; d++)
            print_term(print, named("f%c%d", index_letters[index], d).text, finish->at[k].strides[index][d],
                       named("f%d_%c%d", k, index_letters[index], d).text);
}
