/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA families of copies and random numbers, without a GPU: how they work, the cases that they decline and the
   exact messages, and that every generated kernel compiles for all generations of chips without spills. */
#include "cuda_family.h"

/* ---- Cases: copies and random numbers ---------------------------------------------------------------------------- */

static void concat_channels(struct model *m) {
    desc op = make(WEFT_BACKEND_OPERATION_CONCAT_DESCRIPTOR), inputs[10];
    for (int i = 0; i < 10; i++)
        inputs[i] = channels_last(m, DIMS(8, 32, 28, 28), F16);
    MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_CONCAT_INPUT_DESCS, WEFT_TYPE_BACKEND_DESCRIPTOR, 10, inputs));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CONCAT_OUTPUT_DESC, channels_last(m, DIMS(8, 320, 28, 28), F16)));
    MUST(set_number(op, WEFT_ATTR_OPERATION_CONCAT_AXIS, 1));
    add(m, op);
}

static void join_columns(struct model *m, int64_t first, int64_t second, int type) {
    desc op = make(WEFT_BACKEND_OPERATION_CONCAT_DESCRIPTOR);
    desc inputs[] = {typed(m, DIMS(512, first), type), typed(m, DIMS(512, second), type)};
    MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_CONCAT_INPUT_DESCS, WEFT_TYPE_BACKEND_DESCRIPTOR, 2, inputs));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CONCAT_OUTPUT_DESC, typed(m, DIMS(512, first + second), type)));
    MUST(set_number(op, WEFT_ATTR_OPERATION_CONCAT_AXIS, 1));
    add(m, op);
}

static void join_short_chunks(struct model *m) { join_columns(m, 12, 20, BF16); }
static void join_odd_rows(struct model *m) { join_columns(m, 4095, 2049, BF16); }
static void join_bytes(struct model *m) { join_columns(m, 33, 1000, I8); }

static void reshape_turned(struct model *m) {
    desc op = make(WEFT_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESHAPE_XDESC, channels_last(m, DIMS(8, 24, 5, 6), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESHAPE_YDESC, typed(m, DIMS(8, 720), BF16)));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_RESHAPE_MODE, WEFT_TYPE_RESHAPE_MODE, WEFT_RESHAPE_LOGICAL));
    add(m, op);
}

static void draw(struct model *m, weftRngDistribution_t distribution, desc y) {
    desc parameters = make(WEFT_BACKEND_RNG_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_RNG_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_RNG_DISTRIBUTION, WEFT_TYPE_RNG_DISTRIBUTION, distribution));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RNG_DESC, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RNG_YDESC, y));
    MUST(set_number(op, WEFT_ATTR_OPERATION_RNG_SEED, 7));
    drop(parameters);
    add(m, op);
}

static void draw_normal(struct model *m) { draw(m, WEFT_RNG_DISTRIBUTION_NORMAL, typed(m, DIMS(64, 1023), F32)); }

static void draw_double(struct model *m) { draw(m, WEFT_RNG_DISTRIBUTION_NORMAL, typed(m, DIMS(64, 1024), F64)); }

static void draw_mask(struct model *m) {
    draw(m, WEFT_RNG_DISTRIBUTION_BERNOULLI, typed(m, DIMS(64, 1024), WEFT_DATA_BYTE_BOOLEAN));
}

static void draw_uniform(struct model *m) { draw(m, WEFT_RNG_DISTRIBUTION_UNIFORM, typed(m, DIMS(64, 1024), BF16)); }

static const struct family_case cases[] = {
    {&cuda_move, concat_channels, "concat of channels", "10 copies, runs of 8"},
    {&cuda_move, join_short_chunks, "concat of short chunks", "2 tensors joined, 4 elements at once"},
    {&cuda_move, join_odd_rows, "concat of odd rows", "2 tensors joined, 8 elements at once"},
    {&cuda_move, join_bytes, "concat of bytes", "2 tensors joined, 16 elements at once"},
    {&cuda_move, reshape_turned, "reshape of what is not packed", "1 copy, runs of 1"},
    {&cuda_rng, draw_normal, "normal, odd rows", "Philox, one per store"},
    {&cuda_rng, draw_double, "normal in double", "Philox, four per store"},
    {&cuda_rng, draw_mask, "mask", "Philox, four per store"},
    {&cuda_rng, draw_uniform, "uniform", "Philox, four per store"},
};

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_move, only_pointwise, "pointwise does more than move elements."},
    {&cuda_rng, only_pointwise, "pointwise does not generate random numbers."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
