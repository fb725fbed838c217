/* SPDX-License-Identifier: Apache-2.0 */
/* The CTC family of CUDA, without a GPU: threads of a sequence, the cases that it declines and the exact messages, and
   that its kernels compile for all generations of chips without spills. */
#include "cuda_family.h"

/* 100 steps of 16 sequences and 30 classes; `labels` per sequence, or of all together. */
static void recognize(struct model *m, int64_t labels, int type, bool is_joined, bool is_backward) {
    desc log_probs = typed(m, DIMS(100, 16, 30), type), alpha = typed(m, DIMS(16, 100, 2 * labels + 1), F32);
    desc targets = is_joined ? typed(m, DIMS(16 * labels), I32) : typed(m, DIMS(16, labels), I64);
    desc steps = typed(m, DIMS(16), I32), counts = typed(m, DIMS(16), I32);
    if (!is_backward) {
        desc op = make(WEFT_BACKEND_OPERATION_CTC_LOSS_FWD_DESCRIPTOR_EXT);
        MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_LOG_PROBS_DESC_EXT, log_probs));
        MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_TARGETS_DESC_EXT, targets));
        MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_INPUT_LENGTHS_DESC_EXT, steps));
        MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_TARGET_LENGTHS_DESC_EXT, counts));
        MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_LOSS_DESC_EXT, typed(m, DIMS(16), F32)));
        MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_LOG_ALPHA_DESC_EXT, alpha));
        MUST(set_number(op, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_MAX_TARGET_LENGTH_EXT, labels));
        add(m, op);
        return;
    }
    desc op = make(WEFT_BACKEND_OPERATION_CTC_LOSS_BWD_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_DLOSS_DESC_EXT, typed(m, DIMS(16), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_LOG_PROBS_DESC_EXT, log_probs));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_TARGETS_DESC_EXT, targets));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_INPUT_LENGTHS_DESC_EXT, steps));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_TARGET_LENGTHS_DESC_EXT, counts));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_LOG_ALPHA_DESC_EXT, alpha));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_DLOG_PROBS_DESC_EXT, typed(m, DIMS(100, 16, 30), type)));
    MUST(set_number(op, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_MAX_TARGET_LENGTH_EXT, labels));
    add(m, op);
}

static void loss(struct model *m) { recognize(m, 20, F32, false, false); }
static void loss_of_joined_labels(struct model *m) { recognize(m, 100, BF16, true, false); }
static void loss_of_many_states(struct model *m) { recognize(m, 1200, F64, false, false); }
static void gradient(struct model *m) { recognize(m, 20, F16, true, true); }
static void gradient_of_many_states(struct model *m) { recognize(m, 1200, F32, false, true); }

static const struct family_case cases[] = {
    {&cuda_ctc, loss, "loss", "41 states, 64 threads per sequence"},
    {&cuda_ctc, loss_of_joined_labels, "joined labels", "201 states, 256 threads per sequence"},
    {&cuda_ctc, loss_of_many_states, "many states", "2401 states, 1024 threads per sequence, in scratch memory"},
    {&cuda_ctc, gradient, "gradient", "41 states, 64 threads per sequence"},
    {&cuda_ctc, gradient_of_many_states, "gradient of many states", "in scratch memory"},
};

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_ctc, only_pointwise, "pointwise is not a CTC loss."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
