/* SPDX-License-Identifier: Apache-2.0 */
/* The places of A and B as text: functions from an index to an offset and, where elements can be outside, coordinates.
   Both are sums of a part from the batch, one from the factor's own index and one from the depth, so that kernels keep
   tables of the parts. It must not know tiles or what follows the sum. */
#include "engines/cuda/product/contraction.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char index_letters[INDICES + 1] = "zijk";
static const char factor_letters[] = "ab";

struct name named(const char *format, ...) {
    struct name name;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name.text, sizeof name.text, format, arguments);
    va_end(arguments);
    return name;
}

void print_real(struct kernel_print *print, double number, const char *name) {
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    print_number(print, bits, name);
}

void print_term(struct kernel_print *print, const char *digit, int64_t coefficient, const char *argument) {
    if (coefficient == 1)
        text_add(&print->code, " + %s", digit);
    else if (coefficient)
        text_add(&print->code, " + %s * p.%s", digit, argument);
}

void print_split(struct kernel_print *print, const char *prefix, int count, const char *value,
                 const struct digits *digits) {
    if (count == 0)
        return;
    if (count > 1)
        text_add(&print->code, "    index %s_rest = %s;\n", prefix, value);
    for (int d = count - 1; d > 0; d--) {
        int phase = digits ? digits->at[d].phase : NO_PHASE;
        text_add(&print->code, "    [[maybe_unused]] const i64 %s%d = split(%s_rest, %s%d);\n", prefix, d, prefix,
                 phase != NO_PHASE && prefix[0] == 'k' ? "g.taps" : named("p.%s", prefix).text,
                 phase != NO_PHASE && prefix[0] == 'k' ? phase : d);
    }
    text_add(&print->code, "    [[maybe_unused]] const i64 %s0 = %s%s;\n", prefix, count > 1 ? prefix : value,
             count > 1 ? "_rest" : "");
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

static void print_coefficient(struct kernel_print *print, int64_t coefficient, const char *name) {
    if (coefficient != 0 && coefficient != 1)
        print_number(print, coefficient, name);
}

static void print_arguments(struct kernel_print *print, const struct contraction *c) {
    for (int index = 0; index < INDICES; index++)
        for (int d = 0; d < c->digits[index].count; d++) {
            const struct digit *digit = &c->digits[index].at[d];
            char letter = index_letters[index];
            if (d > 0 && (index != DEPTH || digit->phase == NO_PHASE))
                print_divisor(print, digit->extent, named("%c%d", letter, d).text);
            for (int f = 0; f < FACTORS; f++) {
                print_coefficient(print, digit->stride[f], named("%c_%c%d", factor_letters[f], letter, d).text);
                for (int i = 0; i < COORDINATES; i++)
                    print_coefficient(print, digit->step[f][i],
                                      named("%c_%c%d_at%d", factor_letters[f], letter, d, i).text);
            }
        }
    print_number(print, digits_extent(&c->digits[ROW]), "rows");
    print_number(print, digits_extent(&c->digits[COLUMN]), "columns");
}

/* ---- The batch entry --------------------------------------------------------------------------------------------- */

static void print_batch_struct(struct kernel_print *print, const struct contraction *c) {
    text_add(&print->code, "struct batch {\n    i64 a, b;\n    index depth;\n");
    for (int f = 0; f < FACTORS; f++)
        for (int i = 0; i < COORDINATES; i++)
            if (c->factor[f].is_checked[i])
                text_add(&print->code, "    i32 %c_at%d;\n", factor_letters[f], i);
    for (int n = 0; n < c->phase_count; n++)
        text_add(&print->code, "    divisor taps%d;\n", n);
    if (contraction_has_overrides(c))
        text_add(&print->code, "    i64 used0, used1, used2;\n");
    text_add(&print->code, "};\n\n");
}

/* Of the taps that a phase sees: the first one, how many, and where in dy the first one reads. */
static void print_phase(struct kernel_print *print, const struct contraction *c, int n) {
    const struct phase *phase = &c->phases[n];
    int z = 0;
    while (c->digits[BATCH].at[z].phase != n)
        z++;
    const int64_t numbers[] = {phase->taps, phase->tap_step, phase->stride,  phase->dilation,
                               phase->pre,  phase->a_stride, phase->b_stride};
    static const char *const names[] = {"taps", "tap_step", "stride", "dilation", "pre", "a_stride", "b_stride"};
    for (int i = 0; i < 7; i++)
        print_number(print, numbers[i], named("%s%d", names[i], n).text);
    text_add(
        &print->code,
        "    const i32 first%d = first_tap((i32)(z%d + p.pre%d), (i32)p.taps%d, (i32)p.dilation%d, (i32)p.stride%d);\n"
        "    const i32 start%d = ((i32)(z%d + p.pre%d) - first%d * (i32)p.dilation%d) / (i32)p.stride%d;\n"
        "    g.taps%d = make_divisor(count_taps(first%d, (i32)p.taps%d, (i32)p.tap_step%d));\n"
        "    g.depth *= g.taps%d.value;\n"
        "    g.a += start%d * p.a_stride%d;\n    g.b += first%d * p.b_stride%d;\n    g.a_at%d += start%d;\n",
        n, z, n, n, n, n, n, z, n, n, n, n, n, n, n, n, n, n, n, n, n, phase->coordinate, n);
}

void contraction_print_override(struct kernel_print *print, const struct contraction *c, int n, const char *digit) {
    const struct tensor *used = c->used[n];
    const struct digits *batch = &c->digits[BATCH];
    print_pointer(print, (weftDataType_t)used->type, graph_find_value(print->graph, used), 0, named("used%d", n).text);
    text_add(&print->code, "to_integer(*(p.used%d", n);
    for (int d = 0; d < batch->count; d++) {
        bool moves = tensor_elements(used) > 1 && used->dims.at[batch->at[d].dim] != 1;
        int64_t stride = moves ? used->strides.at[batch->at[d].dim] * batch->at[d].dim_step : 0;
        print_coefficient(print, stride, named("used%d_z%d", n, d).text);
        print_term(print, named(digit, d).text, stride, named("used%d_z%d", n, d).text);
    }
    text_add(&print->code, " + 0))");
}

/* The override of M, N or K of this batch entry, or all. */
static void print_override(struct kernel_print *print, const struct contraction *c, int n) {
    static const char *const all[] = {"p.rows", "p.columns", "g.depth"};
    text_add(&print->code, "    g.used%d = ", n);
    if (c->used[n])
        contraction_print_override(print, c, n, "z%d");
    else
        text_add(&print->code, "%s", all[n]);
    text_add(&print->code, ";\n");
}

static void print_find_batch(struct kernel_print *print, const struct contraction *c) {
    const struct digits *batch = &c->digits[BATCH];
    int64_t depth = 1;
    for (int d = 0; d < c->digits[DEPTH].count; d++)
        depth *= c->digits[DEPTH].at[d].phase == NO_PHASE ? c->digits[DEPTH].at[d].extent : 1;
    print_number(print, depth, "depth");
    text_add(&print->code, "DEVICE batch find_batch(const arguments& p, index z) {\n    batch g;\n");
    print_split(print, "z", batch->count, "z", batch);
    text_add(&print->code, "    g.depth = (index)p.depth;\n");
    for (int f = 0; f < FACTORS; f++) {
        const struct factor *factor = &c->factor[f];
        char letter = factor_letters[f];
        print_number(print, factor->first, named("%c_first", letter).text);
        text_add(&print->code, "    g.%c = p.%c_first", letter, letter);
        for (int d = 0; d < batch->count; d++)
            print_term(print, named("z%d", d).text, batch->at[d].stride[f], named("%c_z%d", letter, d).text);
        text_add(&print->code, ";\n");
        for (int i = 0; i < COORDINATES; i++) {
            if (!factor->is_checked[i])
                continue;
            print_number(print, factor->start[i], named("%c_start%d", letter, i).text);
            text_add(&print->code, "    g.%c_at%d = (i32)(p.%c_start%d", letter, i, letter, i);
            for (int d = 0; d < batch->count; d++)
                print_term(print, named("z%d", d).text, batch->at[d].step[f][i],
                           named("%c_z%d_at%d", letter, d, i).text);
            text_add(&print->code, ");\n");
        }
    }
    for (int n = 0; n < c->phase_count; n++)
        print_phase(print, c, n);
    for (int n = 0; n < 3 && contraction_has_overrides(c); n++)
        print_override(print, c, n);
    text_add(&print->code, "    return g;\n}\n\n");
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

/* One part of a factor's place: `index` is the factor's own, which brings the batch's part along, or DEPTH. */
static void print_place(struct kernel_print *print, const struct contraction *c, int f, int index) {
    const struct factor *factor = &c->factor[f];
    const struct digits *digits = &c->digits[index];
    char letter = factor_letters[f], name[] = {index_letters[index], 0};
    bool is_depth = index == DEPTH;
    text_add(&print->code, "DEVICE %c_place %c_%s(const arguments& p, const batch& g, index %s) {\n", letter, letter,
             is_depth ? "depth" : "outer", name);
    text_add(&print->code, "    %c_place place = {};\n", letter);
    text_add(&print->code, "    if (%s >= %s) { place.offset = NOWHERE; return place; }\n", name,
             is_depth       ? "g.depth"
             : index == ROW ? "(index)p.rows"
                            : "(index)p.columns");
    print_split(print, name, digits->count, name, digits);
    text_add(&print->code, "    place.offset = %s", is_depth ? "0" : named("g.%c", letter).text);
    for (int d = 0; d < digits->count; d++)
        print_term(print, named("%s%d", name, d).text, digits->at[d].stride[f], named("%c_%s%d", letter, name, d).text);
    text_add(&print->code, ";\n");
    for (int i = 0; i < COORDINATES; i++) {
        if (!factor->is_checked[i])
            continue;
        text_add(&print->code, "    place.at%d = %s(i32)(0", i, is_depth ? "" : named("g.%c_at%d + ", letter, i).text);
        for (int d = 0; d < digits->count; d++)
            print_term(print, named("%s%d", name, d).text, digits->at[d].step[f][i],
                       named("%c_%s%d_at%d", letter, name, d, i).text);
        text_add(&print->code, ");\n");
    }
    if (contraction_has_overrides(c))
        text_add(&print->code, "    place.unused = %s >= g.used%d;\n", name, is_depth ? 2 : index == ROW ? 0 : 1);
    text_add(&print->code, "    return place;\n}\n\n");
}

static void print_factor(struct kernel_print *print, const struct contraction *c, int f) {
    const struct factor *factor = &c->factor[f];
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    weftDataType_t type = (weftDataType_t)factor->tensor->type;
    char letter = factor_letters[f];
    const char *staged = f == FACTOR_A ? row->a_staged : row->b_staged;
    print_pointer(print, type, factor->value, 0, named("%c", letter).text);
    text_add(&print->code, "struct %c_place {\n    i64 offset;\n", letter);
    for (int i = 0; i < COORDINATES; i++)
        if (factor->is_checked[i])
            text_add(&print->code, "    i32 at%d;\n", i);
    text_add(&print->code, "%s};\n\n", contraction_has_overrides(c) ? "    bool unused;\n" : "");
    print_place(print, c, f, f == FACTOR_A ? ROW : COLUMN);
    print_place(print, c, f, DEPTH);
    text_add(&print->code,
             "struct factor_%c {\n    using stored = %s;\n    using staged = %s;\n    using place = %c_place;\n"
             "    static constexpr int RUN = %d;\n    static constexpr bool ALONG_DEPTH = %s;\n",
             letter, cuda_type_name(type),
             staged                   ? staged
             : type == WEFT_DATA_INT8 ? "i8"
                                      : "u8",
             letter, factor->run, factor->along_depth ? "true" : "false");
    text_add(&print->code,
             "    static DEVICE bool is_inside(const arguments& p, const %c_place& x, const %c_place& y) {\n"
             "        return true",
             letter, letter);
    for (int i = 0; i < COORDINATES; i++)
        if (factor->is_checked[i]) {
            print_number(print, factor->size[i], named("%c_size%d", letter, i).text);
            text_add(&print->code, " && (u32)(x.at%d + y.at%d) < (u32)p.%c_size%d", i, i, letter, i);
        }
    text_add(&print->code, "%s;\n    }\n", contraction_has_overrides(c) ? " && !x.unused && !y.unused" : "");
    if (c->is_direct) {
        const struct digits *batch = &c->digits[BATCH];
        int64_t lead = batch->count ? batch->at[batch->count - 1].stride[f] : 0;
        text_add(&print->code, "    static DEVICE i64 lead(const arguments& p) { return 0");
        print_term(print, "1", lead, named("%c_z%d", letter, batch->count - 1).text);
        text_add(&print->code, "; }\n    static constexpr bool IS_SHARED = %s;\n", lead ? "false" : "true");
    }
    text_add(&print->code, "};\n\n");
}

void contraction_print_factors(struct kernel_print *print, const struct contraction *c) {
    print_arguments(print, c);
    print_batch_struct(print, c);
    print_find_batch(print, c);
    for (int f = 0; f < FACTORS; f++)
        print_factor(print, c, f);
}
