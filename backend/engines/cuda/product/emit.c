/* SPDX-License-Identifier: Apache-2.0 */
/* Generates the offsets of A and B: functions from an index to an offset and, if elements can be outside, coordinates.
   Both are sums of three parts, from the batch, from the operand's own index and from k, so that kernels can tabulate
   the parts. This file must not know tiles or the epilogue. */
#include "engines/cuda/product/contraction.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char index_letters[INDICES + 1] = "zijk";
static const char operand_letters[] = "ab";

/* Returned by value, so that it lives until the end of the full expression. Text beyond 31 characters is truncated. */
struct name named(const char *format, ...) {
    struct name name;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name.text, sizeof name.text, format, arguments);
    va_end(arguments);
    return name;
}

/* Arguments are 64-bit integers: kernels reinterpret the bits with __longlong_as_double. */
void emit_real(struct kernel_source *source, double number, const char *name) {
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    emit_number(source, bits, name);
}

/* Coefficients of 0 and 1 are part of the text; emit_coefficient omits their fields accordingly. */
void emit_term(struct kernel_source *source, const char *mode, int64_t coefficient, const char *argument) {
    if (coefficient == 1)
        text_add(&source->code, " + %s", mode);
    else if (coefficient)
        text_add(&source->code, " + %s * p.%s", mode, argument);
}

void emit_split(struct kernel_source *source, const char *prefix, int count, const char *value,
                const struct modes *modes) {
    if (count == 0)
        return;
    if (count > 1)
        text_add(&source->code, "    index %s_rest = %s;\n", prefix, value);
    /* Starts with the fastest mode: each division leaves the quotient for the slower ones, and mode 0 is the last
       quotient. */
    for (int d = count - 1; d > 0; d--) {
        /* find_batch counts the taps that a phase sees on the device. */
        int phase = modes ? modes->at[d].phase : NO_PHASE;
        text_add(&source->code, "    [[maybe_unused]] const i64 %s%d = split(%s_rest, %s%d);\n", prefix, d, prefix,
                 phase != NO_PHASE && prefix[0] == 'k' ? "g.taps" : named("p.%s", prefix).text,
                 phase != NO_PHASE && prefix[0] == 'k' ? phase : d);
    }
    text_add(&source->code, "    [[maybe_unused]] const i64 %s0 = %s%s;\n", prefix, count > 1 ? prefix : value,
             count > 1 ? "_rest" : "");
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

/* Coefficients of 0 and 1 are part of the text, not arguments: see emit_term(). */
static void emit_coefficient(struct kernel_source *source, int64_t coefficient, const char *name) {
    if (coefficient != 0 && coefficient != 1)
        emit_number(source, coefficient, name);
}

/* Names consist of the operand's letter, the index's letter and the mode: a_i1. The slowest mode of an index has no
   divisor, and the taps of a phase have one that is computed at run time. */
static void emit_arguments(struct kernel_source *source, const struct contraction *c) {
    for (int index = 0; index < INDICES; index++)
        for (int d = 0; d < c->modes[index].count; d++) {
            const struct mode *mode = &c->modes[index].at[d];
            char letter = index_letters[index];
            if (d > 0 && (index != K || mode->phase == NO_PHASE))
                emit_divisor(source, mode->extent, named("%c%d", letter, d).text);
            for (int f = 0; f < OPERANDS; f++) {
                emit_coefficient(source, mode->stride[f], named("%c_%c%d", operand_letters[f], letter, d).text);
                for (int i = 0; i < COORDINATES; i++)
                    emit_coefficient(source, mode->step[f][i],
                                     named("%c_%c%d_at%d", operand_letters[f], letter, d, i).text);
            }
        }
    emit_number(source, modes_extent(&c->modes[ROW]), "rows");
    emit_number(source, modes_extent(&c->modes[COLUMN]), "columns");
}

/* ---- The batch entry --------------------------------------------------------------------------------------------- */

/* struct batch, which all tiles of a batch entry share: offsets and coordinates of A and B, taps of each phase, and
   sizes that are only known on the device. */
static void emit_batch_struct(struct kernel_source *source, const struct contraction *c) {
    text_add(&source->code, "struct batch {\n    i64 a, b;\n    index k_count;\n");
    for (int f = 0; f < OPERANDS; f++)
        for (int i = 0; i < COORDINATES; i++)
            if (c->operand[f].is_checked[i])
                text_add(&source->code, "    i32 %c_at%d;\n", operand_letters[f], i);
    for (int n = 0; n < c->phase_count; n++)
        text_add(&source->code, "    divisor taps%d;\n", n);
    /* Rows, columns and k. */
    if (contraction_has_overrides(c))
        text_add(&source->code, "    i64 used0, used1, used2;\n");
    text_add(&source->code, "};\n\n");
}

/* Emits the computation of the taps that a phase sees: the first one, their number, and the position in dy that the
   first one reads. It runs once per batch entry, because it needs divisions that tiles should not repeat. z: the batch
   mode that selects this phase. */
static void emit_phase(struct kernel_source *source, const struct contraction *c, int n) {
    const struct phase *phase = &c->phases[n];
    int z = 0;
    while (c->modes[BATCH].at[z].phase != n)
        z++;
    const int64_t numbers[] = {phase->taps, phase->tap_step, phase->stride,  phase->dilation,
                               phase->pre,  phase->a_stride, phase->b_stride};
    static const char *const names[] = {"taps", "tap_step", "stride", "dilation", "pre", "a_stride", "b_stride"};
    for (int i = 0; i < 7; i++)
        emit_number(source, numbers[i], named("%s%d", names[i], n).text);
    text_add(
        &source->code,
        "    const i32 first%d = first_tap((i32)(z%d + p.pre%d), (i32)p.taps%d, (i32)p.dilation%d, (i32)p.stride%d);\n"
        "    const i32 start%d = ((i32)(z%d + p.pre%d) - first%d * (i32)p.dilation%d) / (i32)p.stride%d;\n"
        "    g.taps%d = make_divisor(count_taps(first%d, (i32)p.taps%d, (i32)p.tap_step%d));\n"
        "    g.k_count *= g.taps%d.value;\n"
        "    g.a += start%d * p.a_stride%d;\n    g.b += first%d * p.b_stride%d;\n    g.a_at%d += start%d;\n",
        n, z, n, n, n, n, n, z, n, n, n, n, n, n, n, n, n, n, n, n, n, phase->coordinate, n);
}

/* The override has one element for all entries, or one per batch entry along some dims. */
void contraction_emit_override(struct kernel_source *source, const struct contraction *c, int n, const char *mode) {
    const struct tensor *used = c->used[n];
    const struct modes *batch = &c->modes[BATCH];
    emit_pointer(source, (weftDataType_t)used->type, graph_find_value(source->graph, used), 0, named("used%d", n).text);
    text_add(&source->code, "to_integer(*(p.used%d", n);
    for (int d = 0; d < batch->count; d++) {
        /* Dims of 1 broadcast. */
        bool moves = tensor_elements(used) > 1 && used->dims.at[batch->at[d].dim] != 1;
        int64_t stride = moves ? used->strides.at[batch->at[d].dim] * batch->at[d].dim_step : 0;
        emit_coefficient(source, stride, named("used%d_z%d", n, d).text);
        emit_term(source, named(mode, d).text, stride, named("used%d_z%d", n, d).text);
    }
    text_add(&source->code, " + 0))");
}

/* Emits the override of M, N or K for this batch entry, or the full size. */
static void emit_override(struct kernel_source *source, const struct contraction *c, int n) {
    static const char *const all[] = {"p.rows", "p.columns", "g.k_count"};
    text_add(&source->code, "    g.used%d = ", n);
    if (c->used[n])
        contraction_emit_override(source, c, n, "z%d");
    else
        text_add(&source->code, "%s", all[n]);
    text_add(&source->code, ";\n");
}

/* Emits find_batch(p, z): the batch's part of offsets and coordinates, and the number of k. k_count starts as the
   product of modes without phases, and each phase multiplies it by its number of taps. Letters: a and b for operands, z
   for modes of the batch. */
static void emit_find_batch(struct kernel_source *source, const struct contraction *c) {
    const struct modes *batch = &c->modes[BATCH];
    int64_t k = 1;
    for (int d = 0; d < c->modes[K].count; d++)
        k *= c->modes[K].at[d].phase == NO_PHASE ? c->modes[K].at[d].extent : 1;
    emit_number(source, k, "k_count");
    text_add(&source->code, "DEVICE batch find_batch(const arguments& p, index z) {\n    batch g;\n");
    emit_split(source, "z", batch->count, "z", batch);
    text_add(&source->code, "    g.k_count = (index)p.k_count;\n");
    for (int f = 0; f < OPERANDS; f++) {
        const struct product_operand *operand = &c->operand[f];
        char letter = operand_letters[f];
        emit_number(source, operand->first, named("%c_first", letter).text);
        text_add(&source->code, "    g.%c = p.%c_first", letter, letter);
        for (int d = 0; d < batch->count; d++)
            emit_term(source, named("z%d", d).text, batch->at[d].stride[f], named("%c_z%d", letter, d).text);
        text_add(&source->code, ";\n");
        for (int i = 0; i < COORDINATES; i++) {
            if (!operand->is_checked[i])
                continue;
            emit_number(source, operand->start[i], named("%c_start%d", letter, i).text);
            text_add(&source->code, "    g.%c_at%d = (i32)(p.%c_start%d", letter, i, letter, i);
            for (int d = 0; d < batch->count; d++)
                emit_term(source, named("z%d", d).text, batch->at[d].step[f][i],
                          named("%c_z%d_at%d", letter, d, i).text);
            text_add(&source->code, ");\n");
        }
    }
    for (int n = 0; n < c->phase_count; n++)
        emit_phase(source, c, n);
    for (int n = 0; n < 3 && contraction_has_overrides(c); n++)
        emit_override(source, c, n);
    text_add(&source->code, "    return g;\n}\n\n");
}

/* ---- Offsets and coordinates ------------------------------------------------------------------------------------- */

/* Emits one part of an operand's offset. `index` is the operand's own index, whose part includes that of the batch, or
   K. NOWHERE disables loads past the last row, column or k, so that tiles at the edges need no test of their own. With
   overridden sizes, `unused` marks elements that exist but count as absent. */
static void emit_offsets(struct kernel_source *source, const struct contraction *c, int f, int index) {
    const struct product_operand *operand = &c->operand[f];
    const struct modes *modes = &c->modes[index];
    char letter = operand_letters[f], name[] = {index_letters[index], 0};
    bool is_k = index == K;
    text_add(&source->code, "DEVICE %c_coordinates %c_%s(const arguments& p, const batch& g, index %s) {\n", letter,
             letter, is_k ? "k" : "outer", name);
    text_add(&source->code, "    %c_coordinates at = {};\n", letter);
    text_add(&source->code, "    if (%s >= %s) { at.offset = NOWHERE; return at; }\n", name,
             is_k           ? "g.k_count"
             : index == ROW ? "(index)p.rows"
                            : "(index)p.columns");
    emit_split(source, name, modes->count, name, modes);
    text_add(&source->code, "    at.offset = %s", is_k ? "0" : named("g.%c", letter).text);
    for (int d = 0; d < modes->count; d++)
        emit_term(source, named("%s%d", name, d).text, modes->at[d].stride[f], named("%c_%s%d", letter, name, d).text);
    text_add(&source->code, ";\n");
    for (int i = 0; i < COORDINATES; i++) {
        if (!operand->is_checked[i])
            continue;
        text_add(&source->code, "    at.at%d = %s(i32)(0", i, is_k ? "" : named("g.%c_at%d + ", letter, i).text);
        for (int d = 0; d < modes->count; d++)
            emit_term(source, named("%s%d", name, d).text, modes->at[d].step[f][i],
                      named("%c_%s%d_at%d", letter, name, d, i).text);
        text_add(&source->code, ");\n");
    }
    if (contraction_has_overrides(c))
        text_add(&source->code, "    at.unused = %s >= g.used%d;\n", name, is_k ? 2 : index == ROW ? 0 : 1);
    text_add(&source->code, "    return at;\n}\n\n");
}

/* The contribution of an index to an operand's offset, and to the coordinates that must be inside an image. */
static void emit_coordinates(struct kernel_source *source, const struct contraction *c, int f) {
    text_add(&source->code, "struct %c_coordinates {\n    i64 offset;\n", operand_letters[f]);
    for (int i = 0; i < COORDINATES; i++)
        if (c->operand[f].is_checked[i])
            text_add(&source->code, "    i32 at%d;\n", i);
    text_add(&source->code, "%s};\n\n", contraction_has_overrides(c) ? "    bool unused;\n" : "");
}

/* Emits is_inside(): true if the element with the sum of two coordinates exists. One unsigned comparison covers both
   ends, because a negative coordinate becomes a large unsigned number. */
static void emit_is_inside(struct kernel_source *source, const struct contraction *c, int f) {
    const struct product_operand *operand = &c->operand[f];
    char letter = operand_letters[f];
    text_add(
        &source->code,
        "    static DEVICE bool is_inside(const arguments& p, const %c_coordinates& x, const %c_coordinates& y) {\n"
        "        return true",
        letter, letter);
    for (int i = 0; i < COORDINATES; i++)
        if (operand->is_checked[i]) {
            emit_number(source, operand->size[i], named("%c_size%d", letter, i).text);
            text_add(&source->code, " && (u32)(x.at%d + y.at%d) < (u32)p.%c_size%d", i, i, letter, i);
        }
    text_add(&source->code, "%s;\n    }\n", contraction_has_overrides(c) ? " && !x.unused && !y.unused" : "");
}

/* Emits lead() of the direct kernel: the distance between the operand's elements of consecutive results. IS_SHARED:
   these read the same element. The direct kernel numbers results by the batch only, and its last mode is contiguous in
   the result. */
static void emit_lead(struct kernel_source *source, const struct contraction *c, int f) {
    const struct modes *batch = &c->modes[BATCH];
    int64_t lead = batch->count ? batch->at[batch->count - 1].stride[f] : 0;
    text_add(&source->code, "    static DEVICE i64 lead(const arguments& p) { return 0");
    emit_term(source, "1", lead, named("%c_z%d", operand_letters[f], batch->count - 1).text);
    text_add(&source->code, "; }\n    static constexpr bool IS_SHARED = %s;\n", lead ? "false" : "true");
}

/* Emits all that kernels need to know about A or B: address, coordinates, offsets, types and access. */
static void emit_matrix_operand(struct kernel_source *source, const struct contraction *c, int f) {
    const struct product_operand *operand = &c->operand[f];
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    weftDataType_t type = (weftDataType_t)operand->tensor->type;
    char letter = operand_letters[f];
    const char *staged = f == OPERAND_A ? row->a_staged : row->b_staged;
    emit_pointer(source, type, operand->value, 0, named("%c", letter).text);
    emit_coordinates(source, c, f);
    emit_offsets(source, c, f, f == OPERAND_A ? ROW : COLUMN);
    emit_offsets(source, c, f, K);
    text_add(
        &source->code,
        "struct operand_%c {\n    using stored = %s;\n    using staged = %s;\n    using coordinates = %c_coordinates;\n"
        "    static constexpr int RUN = %d;\n    static constexpr bool IS_K_MAJOR = %s;\n",
        letter, cuda_type_name(type),
        staged                   ? staged
        : type == WEFT_DATA_INT8 ? "i8"
                                 : "u8",
        letter, operand->run, operand->is_k_major ? "true" : "false");
    emit_is_inside(source, c, f);
    if (c->is_direct)
        emit_lead(source, c, f);
    text_add(&source->code, "};\n\n");
}

/* Emits the functions in the order in which they call each other. */
void contraction_emit_operands(struct kernel_source *source, const struct contraction *c) {
    emit_arguments(source, c);
    emit_batch_struct(source, c);
    emit_find_batch(source, c);
    for (int f = 0; f < OPERANDS; f++)
        emit_matrix_operand(source, c, f);
}
