/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, operations and graphs: refusals and their exact messages, inference, and the order of operations. Order and
   inference are observed through the public API: results, attributes and the plan's report. */
#include "graph/graph.h"
#include "harness.h"

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static void test_tensor_rules(void) {
    desc t = open_tensor(1, DIMS(2, -3));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor (uid 1): dims [2,-3]: dimension 1 is negative. Extents are 0 or more elements.");
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, 2, (int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40}));
    REFUSED(
        weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
        "tensor (uid 1): dims [1099511627776,1099511627776] multiply to more than 2^63 elements. Use smaller dims.");
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, 2, (int64_t[]){2, 3}));
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_STRIDES, 1, (int64_t[]){3}));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
            "tensor (uid 1): 1 stride for 2 dims. Give one stride per dimension, or none for a packed tensor.");
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){3, -1}));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor (uid 1): strides [3,-1]: stride 1 is negative. Point at the lowest element and use strides of 0 or "
            "more.");
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){INT64_MAX, 1}));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor (uid 1): dims [2,3] with strides [9223372036854775807,1] reach past 2^44 elements. Use smaller "
            "ones.");
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){3, 1}));
    MUST(set_number(t, WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, 24));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor (uid 1): alignment is 24 bytes, which is not a power of two. Use 1, 2, 4 ... 4096.");
    MUST(set_number(t, WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, 32));
    MUST(set_number(t, WEFT_ATTR_TENSOR_VECTOR_COUNT, 2));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor (uid 1): vector_count is 2 and vectorized_dimension -1, but the tensor has dims [2,3]. Choose one "
            "of them.");
    MUST(set_number(t, WEFT_ATTR_TENSOR_VECTORIZED_DIMENSION, 1));
    REFUSED(
        weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
        "tensor (uid 1): dimension 1 has 3 elements, which is not a multiple of vector_count 2. Pad it to a multiple.");
    MUST(set_number(t, WEFT_ATTR_TENSOR_VECTORIZED_DIMENSION, 0));
    MUST(
        set_enum(t, WEFT_ATTR_TENSOR_REORDERING_MODE, WEFT_TYPE_TENSOR_REORDERING_MODE, WEFT_TENSOR_REORDERING_F16x16));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
            "tensor (uid 1): reordering_type is 2; Weft supports plain order, and block scales in F8_128x4 (3). Undo "
            "the reordering and set NONE (0).");
    MUST(set_enum(t, WEFT_ATTR_TENSOR_REORDERING_MODE, WEFT_TYPE_TENSOR_REORDERING_MODE, WEFT_TENSOR_REORDERING_NONE));
    MUST(weftBackendFinalize(t));
    drop(t);
}

/* Extents whose product or span exceeds the memory of any machine are refused before they are multiplied. */
static void test_huge_tensors(void) {
    float one = 1;
    void *address = &one;
    desc t = open_tensor(1, DIMS(INT64_C(1) << 40, INT64_C(1) << 40));
    MUST(weftBackendSetAttribute(t, WEFT_ATTR_TENSOR_CONSTANT_VALUE, WEFT_TYPE_VOID_PTR, 1, &address));
    REFUSED(
        weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
        "tensor (uid 1): dims [1099511627776,1099511627776] multiply to more than 2^63 elements. Use smaller dims.");
    drop(t);

    t = open_tensor(1, DIMS(INT64_C(1) << 60));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor (uid 1): dims [1152921504606846976] with strides [] reach past 2^44 elements. Use smaller ones.");
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_STRIDES, 1, (int64_t[]){0}));
    MUST(weftBackendFinalize(t)); /* one element, broadcast */
    drop(t);

    static const int64_t most = INT64_C(1) << 44; /* limit: the last element must be stored before it */
    for (int more = 0; more < 2; more++)
        for (int strided = 0; strided < 2; strided++) {
            t = strided ? open_tensor(1, DIMS(2)) : open_tensor(1, DIMS(most + more));
            if (strided)
                MUST(set_numbers(t, WEFT_ATTR_TENSOR_STRIDES, 1, (int64_t[]){most - 1 + more}));
            if (!more)
                MUST(weftBackendFinalize(t));
            else
                REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                        "tensor (uid 1): dims %s reach past 2^44 elements. Use smaller ones.",
                        strided ? "[2] with strides [17592186044416]" : "[17592186044417] with strides []");
            drop(t);
        }

    desc a = tensor(1, DIMS(INT64_C(1) << 40, 1)), b = tensor(2, DIMS(1, INT64_C(1) << 40)), c = tensor(3, UNSET);
    desc op = open_matmul(a, b, c);
    REFUSED(
        weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
        "matmul: output C, tensor (uid 3): dims [1099511627776,1099511627776] multiply to more than 2^63 elements. Use "
        "smaller dims.");
    drop(a), drop(b), drop(c), drop(op);
    a = tensor(1, DIMS(INT64_C(1) << 30, 1)), b = tensor(2, DIMS(1, INT64_C(1) << 30)), c = tensor(3, UNSET);
    op = open_matmul(a, b, c);
    REFUSED(
        weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
        "matmul: output C, tensor (uid 3): dims [1073741824,1073741824] with strides [1073741824,1] reach past 2^44 "
        "elements. Use smaller ones.");
    drop(a), drop(b), drop(c), drop(op);
}

static void test_scalars(void) {
    float one = 1;
    void *address = &one;
    desc t = open_tensor(4, DIMS(2));
    MUST(weftBackendSetAttribute(t, WEFT_ATTR_TENSOR_CONSTANT_VALUE, WEFT_TYPE_VOID_PTR, 1, &address));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM,
            "tensor (uid 4): a constant has one element, a data type and the address of its bytes; dims are [2], data "
            "type 0. Set all three.");
    drop(t);
    t = open_tensor(4, UNSET);
    MUST(set_flag(t, WEFT_ATTR_TENSOR_IS_VIRTUAL, true));
    MUST(set_flag(t, WEFT_ATTR_TENSOR_IS_BY_VALUE, true));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM,
            "tensor (uid 4) is both virtual and by value. A by-value scalar comes from the variant pack.");
    MUST(set_flag(t, WEFT_ATTR_TENSOR_IS_VIRTUAL, false));
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, 2, (int64_t[]){1, 2}));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "tensor (uid 4): a by-value tensor has one element, its dims are [1,2]. Use all ones.");
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, 0, NULL));
    MUST(weftBackendFinalize(t));
    int64_t dims[8], count;
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 8, &count, dims));
    CHECK(count == 1 && dims[0] == 1, "a by-value tensor has dims [1] unless it is told others");

    desc x = tensor(1, DIMS(1)), op = open_pointwise(WEFT_POINTWISE_RELU_FWD, x, NULL, t);
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM,
            "pointwise: output y, tensor (uid 4), is a by-value scalar, which is read only. Give it memory.");
    drop(op), drop(t);
    t = constant(4, 2);
    op = open_pointwise(WEFT_POINTWISE_RELU_FWD, x, NULL, t);
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM,
            "pointwise: output y, tensor (uid 4), is a by-value scalar, which is read only. Give it memory.");
    drop(op), drop(t), drop(x);
}

static void test_ragged(void) {
    desc offsets = open_tensor(1, DIMS(3, 1));
    MUST(set_enum(offsets, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_INT32));
    MUST(weftBackendFinalize(offsets));
    desc ragged = open_tensor(2, DIMS(2, 4)), twice = open_tensor(3, DIMS(2, 4)), y = tensor(4, UNSET);
    MUST(set_held(ragged, WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets));
    MUST(weftBackendFinalize(ragged));
    MUST(set_held(twice, WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged));
    REFUSED(weftBackendFinalize(twice), WEFT_STATUS_BAD_PARAM,
            "tensor (uid 3): ragged_offset, tensor (uid 2), has ragged offsets of its own. Give plain offsets.");
    desc op = open_pointwise(WEFT_POINTWISE_RELU_FWD, ragged, NULL, y);
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
            "pointwise: x, tensor (uid 2), has ragged offsets, which this operation does not support. Give a padded "
            "tensor.");
    drop(offsets), drop(ragged), drop(twice), drop(y), drop(op);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void check_unset(desc t, const char *when) {
    int64_t dims, strides;
    int32_t type;
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 0, &dims, NULL));
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_STRIDES, WEFT_TYPE_INT64, 0, &strides, NULL));
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, 1, NULL, &type));
    CHECK(dims == 0 && strides == 0 && type == -1, "%s: %lld dims, %lld strides, type %d", when, (long long)dims,
          (long long)strides, type);
}

/* A refused operation leaves its output open to inference, and can be finalized once it is repaired. */
static void test_failed_finalize_is_repaired(void) {
    desc a = tensor(1, DIMS(4, 3)), wrong = tensor(2, DIMS(5, 6)), right = tensor(3, DIMS(3, 6));
    desc c = virtual_tensor(4), op = open_matmul(a, wrong, c);
    REFUSED(
        weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
        "matmul: inner sizes differ: A is [4,3] (K=3), B is [5,6] (K=5). Swap B's last two dims and strides if it is "
        "[N,K].");
    check_unset(c, "after infer failed");
    desc lengths = open_tensor(5, DIMS(1, 1)); /* FLOAT lengths are refused after inference */
    MUST(weftBackendFinalize(lengths));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_BDESC, right));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, lengths));
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM,
            "matmul: m_override has data type f32. Use INT32 or INT64.");
    check_unset(c, "after check failed");
    drop(lengths);
    lengths = open_tensor(6, DIMS(1, 1));
    MUST(set_enum(lengths, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_INT64));
    MUST(weftBackendFinalize(lengths));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, lengths));
    MUST(weftBackendFinalize(op));
    int64_t dims[2], count;
    MUST(weftBackendGetAttribute(c, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 2, &count, dims));
    CHECK(count == 2 && dims[0] == 4 && dims[1] == 6, "repaired: %lld dims", (long long)count);
    drop(a), drop(wrong), drop(right), drop(c), drop(op), drop(lengths);
}

static void test_operation_rules(void) {
    desc x = tensor(1, DIMS(2, 3)), unknown = virtual_tensor(2), y = tensor(3, UNSET);
    desc op = open_pointwise(WEFT_POINTWISE_ADD, x, unknown, y);
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM,
            "pointwise: input b, tensor (uid 2), has no dims yet. Set it, or finalize the operation that computes the "
            "tensor first.");
    drop(op);
    op = open_pointwise(WEFT_POINTWISE_ADD, x, NULL, y);
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM,
            "pointwise: mode ADD takes x, b -> y; set are x -> y. Set exactly the operands it takes.");
    MUST(set_text(op, WEFT_ATTR_NAME_EXT, "sum"));
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM,
            "pointwise 'sum': mode ADD takes x, b -> y; set are x -> y. Set exactly the operands it takes.");
    drop(op);

    desc untyped = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    MUST(set_number(untyped, WEFT_ATTR_TENSOR_UNIQUE_ID, 4));
    MUST(set_numbers(untyped, WEFT_ATTR_TENSOR_DIMENSIONS, 2, (int64_t[]){2, 3}));
    MUST(weftBackendFinalize(untyped));
    op = open_pointwise(WEFT_POINTWISE_EXP, untyped, NULL, y);
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM,
            "pointwise: input x, tensor (uid 4), has no data type yet. Set it, or finalize the operation that computes "
            "the tensor first.");
    drop(op);

    desc overlapping = open_tensor(5, DIMS(2, 3));
    MUST(set_numbers(overlapping, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){2, 1}));
    MUST(weftBackendFinalize(overlapping));
    op = open_pointwise(WEFT_POINTWISE_EXP, x, NULL, overlapping);
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "pointwise: output y, tensor (uid 5), overlaps itself: dims [2,3] with strides [2,1]. Give each element "
            "its own location.");
    drop(op);
    desc broadcast = open_tensor(6, DIMS(2, 3));
    MUST(set_numbers(broadcast, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){0, 1}));
    MUST(weftBackendFinalize(broadcast));
    op = open_pointwise(WEFT_POINTWISE_EXP, broadcast, NULL, y); /* strides of 0 are valid for inputs */
    MUST(weftBackendFinalize(op));
    drop(op);
    drop(x), drop(unknown), drop(y), drop(untyped), drop(overlapping), drop(broadcast);
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

static void test_graph_rules(void) {
    desc x = tensor(1, DIMS(2)), y = tensor(2, DIMS(2)), z = tensor(3, DIMS(2)), other_y = tensor(2, DIMS(2));
    desc xy = pointwise(WEFT_POINTWISE_EXP, x, NULL, y), yx = pointwise(WEFT_POINTWISE_NEG, y, NULL, x);
    desc xz = pointwise(WEFT_POINTWISE_EXP, x, NULL, z), zy = pointwise(WEFT_POINTWISE_NEG, z, NULL, y);
    desc xo = pointwise(WEFT_POINTWISE_ABS, x, NULL, other_y), xx = pointwise(WEFT_POINTWISE_ABS, x, NULL, x);

    desc graph = open_graph(0, NULL);
    REFUSED(weftBackendFinalize(graph), WEFT_STATUS_BAD_PARAM,
            "graph has no operations. Set at least one in attribute ops.");
    drop(graph);
    graph = open_graph(2, (desc[]){xy, yx});
    REFUSED(weftBackendFinalize(graph), WEFT_STATUS_BAD_PARAM_CYCLE_EXT,
            "graph has a cycle through pointwise: its inputs depend on its outputs. Break it by writing to another "
            "tensor.");
    drop(graph);
    graph = open_graph(1, &xx);
    REFUSED(weftBackendFinalize(graph), WEFT_STATUS_BAD_PARAM_CYCLE_EXT,
            "graph has a cycle through pointwise: its inputs depend on its outputs. Break it by writing to another "
            "tensor.");
    drop(graph);
    graph = open_graph(2, (desc[]){xy, zy});
    REFUSED(
        weftBackendFinalize(graph), WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
        "graph: tensor (uid 2) is written by pointwise and by pointwise. A tensor has one producer: give one of them "
        "another output.");
    drop(graph);
    graph = open_graph(3, (desc[]){xz, xy, xz});
    REFUSED(weftBackendFinalize(graph), WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
            "graph: pointwise is listed twice. List each operation once.");
    MUST(set_text(graph, WEFT_ATTR_NAME_EXT, "mlp"));
    REFUSED(weftBackendFinalize(graph), WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
            "graph 'mlp': pointwise is listed twice. List each operation once.");
    /* Repaired after finalization failed half-way through. */
    MUST(weftBackendSetAttribute(graph, WEFT_ATTR_OPERATIONGRAPH_OPS, WEFT_TYPE_BACKEND_DESCRIPTOR, 2,
                                 (desc[]){xz, xy}));
    MUST(weftBackendFinalize(graph));
    desc plan = plan_of(graph);
    _Alignas(16) float in[2] = {0, 1}, out[2][2] = {{0}};
    uint64_t pointers[3] = {(uintptr_t)in, (uintptr_t)out[0], (uintptr_t)out[1]};
    pointers[2] = (uintptr_t)(out[0] + 0); /* y and z would overlap */
    REFUSED(weftExecute(plan, 3, pointers, NULL, NULL), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 2) and tensor (uid 3) overlap in memory. Give the output memory of its own.");
    drop(plan), drop(graph);
    graph = open_graph(2, (desc[]){xz, xo});
    MUST(weftBackendFinalize(graph)); /* only other_y has uid 2 here */
    drop(graph);
    graph = open_graph(2, (desc[]){xy, xo});
    REFUSED(weftBackendFinalize(graph), WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
            "graph: tensor (uid 2) and tensor (uid 2) are two descriptors with the same uid. Use one descriptor per "
            "tensor, or give each its own uid.");
    drop(graph);
    drop(x), drop(y), drop(z), drop(other_y), drop(xy), drop(yx), drop(xz), drop(zy), drop(xo), drop(xx);
}

static void test_virtual_without_producer(void) {
    desc x = open_tensor(1, DIMS(2)), y = tensor(2, DIMS(2));
    MUST(set_flag(x, WEFT_ATTR_TENSOR_IS_VIRTUAL, true));
    MUST(set_text(x, WEFT_ATTR_NAME_EXT, "lost"));
    MUST(weftBackendFinalize(x));
    static const char refusal[] =
        "graph: tensor 'lost' (uid 1) is virtual and no operation writes it. Add its producer, or make it non-virtual.";
    desc op = pointwise(WEFT_POINTWISE_EXP, x, NULL, y), graph = open_graph(1, &op);
    weftHandle_t cpu = cpu_handle();
    MUST(weftBackendSetAttribute(graph, WEFT_ATTR_OPERATIONGRAPH_HANDLE, WEFT_TYPE_HANDLE, 1, &cpu));
    REFUSED(weftBackendFinalize(graph), WEFT_STATUS_BAD_PARAM, refusal);
    drop(graph);
    graph = graph_of(1, &op); /* without a handle the graph may lack a producer; only a plan refuses it */
    desc config = open_config(graph, reference_index(graph));
    REFUSED(weftBackendFinalize(config), WEFT_STATUS_BAD_PARAM, refusal);
    drop(x), drop(y), drop(graph), drop(config);
    MUST(weftDestroy(cpu));
}

/* A graph whose outputs are all virtual is valid but computes nothing: engines refuse it. */
static void test_computes_nothing(void) {
    desc x = tensor(1, DIMS(2)), y = virtual_tensor(2), op = pointwise(WEFT_POINTWISE_EXP, x, NULL, y);
    desc graph = graph_of(1, &op), config = open_config(graph, reference_index(graph));
    REFUSED(weftBackendFinalize(config), WEFT_STATUS_BAD_PARAM,
            "graph computes nothing: every tensor that it writes is virtual. Mark an output.");
    desc heuristics = make(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR);
    MUST(set_held(heuristics, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
    MUST(set_enum(heuristics, WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, WEFT_HEUR_MODE_A));
    MUST(weftBackendFinalize(heuristics));
    int64_t count = -1;
    MUST(weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, 0, &count,
                                 NULL));
    CHECK(count == 0, "no engine computes nothing, got %lld", (long long)count);
    char text[4096];
    MUST(weftQuerySupport(graph, NULL, text, sizeof text, NULL));
    CHECK(strstr(text, "\"supported\":false,\"status\":\"WEFT_STATUS_BAD_PARAM\",\"reason\":\"graph computes nothing"),
          "%s", text);
    drop(x), drop(y), drop(graph), drop(config), drop(heuristics);
}

/* x -> 2x -> exp -> neg, and a dead virtual branch; listed backwards. */
static void test_order_and_dead_ends(void) {
    enum { COUNT = 5 };
    desc x = tensor(1, DIMS(4)), two = constant(9, 2), a = virtual_tensor(5), b = virtual_tensor(4),
         y = tensor(2, UNSET);
    desc dead = virtual_tensor(6), deader = virtual_tensor(7);
    desc list[COUNT] = {0};
    list[4] = pointwise(WEFT_POINTWISE_MUL, x, two, a);
    list[3] = pointwise(WEFT_POINTWISE_EXP, a, NULL, b);
    list[2] = pointwise(WEFT_POINTWISE_LOG, a, NULL, dead);
    list[1] = pointwise(WEFT_POINTWISE_ABS, dead, NULL, deader);
    list[0] = pointwise(WEFT_POINTWISE_NEG, b, NULL, y);
    desc graph = open_graph(COUNT, list);
    MUST(weftBackendFinalize(graph));

    struct graph *inside = (struct graph *)graph;
    const desc sorted[COUNT] = {list[4], list[3], list[0], list[2], list[1]};
    for (int i = 0; i < COUNT; i++)
        CHECK((desc)inside->nodes[i].op == sorted[i],
              "node %d: the order given, where what an operation needs comes right before it", i);
    const struct value *value_a = &inside->values[graph_find_uid(inside, 5)];
    CHECK(value_a->producer == 0 && value_a->readers == 1 && value_a->read_by[0] == 1,
          "a: what nobody needs reads nothing: producer %d, readers %d", value_a->producer, value_a->readers);
    CHECK(value_is_dead(&inside->values[graph_find_uid(inside, 6)]), "dead is dead");
    CHECK(value_is_dead(&inside->values[graph_find_uid(inside, 7)]), "deader is dead");
    CHECK(graph_find_uid(inside, 3) == -1 && graph_find_uid(inside, 100) == -1, "uids that there are not");

    desc plan = plan_of(graph);
    char *report = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT, NULL);
    int steps = 0;
    for (const char *at = report; (at = strstr(at, "\"family\":\"cpu.reference\"")); at++)
        steps++;
    CHECK(steps == 3, "dead branches are not run: %d steps in %s", steps, report);
    free(report);

    _Alignas(64) char workspace[4096];
    CHECK(get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) <= (int64_t)sizeof workspace, "workspace");
    _Alignas(16) float in[4] = {0, 0.5f, -1, 2}, out[4] = {9, 9, 9, 9};
    MUST(weftExecute(plan, 2, (uint64_t[]){(uintptr_t)in, (uintptr_t)out}, workspace, NULL));
    const double expected[4] = {-1, -2.718281828459045, -0.1353352832366127, -54.598150033144236};
    for (int i = 0; i < 4; i++)
        CHECK(out[i] / expected[i] < 1 + 1e-6 && out[i] / expected[i] > 1 - 1e-6, "y[%d] is %g", i, out[i]);
    drop(plan), drop(graph), drop(x), drop(two), drop(a), drop(b), drop(y), drop(dead), drop(deader);
    for (int i = 0; i < COUNT; i++)
        drop(list[i]);
}

/* ---- Inference --------------------------------------------------------------------------------------------------- */

static void check_shape(desc t, struct extents dims, struct extents strides, weftDataType_t type, const char *name) {
    int64_t got[2][8], counts[2];
    int32_t got_type;
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 8, &counts[0], got[0]));
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_STRIDES, WEFT_TYPE_INT64, 8, &counts[1], got[1]));
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, 1, NULL, &got_type));
    CHECK(counts[0] == dims.count && !memcmp(got[0], dims.at, (size_t)dims.count * 8), "dims of %s", name);
    CHECK(counts[1] == strides.count && !memcmp(got[1], strides.at, (size_t)strides.count * 8), "strides of %s", name);
    CHECK(got_type == (int32_t)type, "type of %s is %d", name, got_type);
}

static desc typed_tensor(int64_t uid, weftDataType_t type, struct extents dims, struct extents strides) {
    desc t = open_tensor(uid, dims);
    MUST(set_enum(t, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, (int32_t)type));
    if (strides.count)
        MUST(set_numbers(t, WEFT_ATTR_TENSOR_STRIDES, strides.count, strides.at));
    return finalized(t);
}

/* A channels-last half tensor keeps its order through a chain; virtual tensors have the compute type. */
static void test_inference_through_a_chain(void) {
    desc x = typed_tensor(1, WEFT_DATA_HALF, DIMS(2, 3, 4, 5), DIMS(60, 1, 15, 3));
    desc bias = typed_tensor(2, WEFT_DATA_HALF, DIMS(1, 3, 1, 1), UNSET);
    desc sum = virtual_tensor(3), compared = virtual_tensor(4), y = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    MUST(set_number(y, WEFT_ATTR_TENSOR_UNIQUE_ID, 5));
    MUST(weftBackendFinalize(y));
    desc ops_made[3];
    ops_made[0] = pointwise(WEFT_POINTWISE_ADD, bias, x, sum); /* the broadcast operand comes first */
    check_shape(sum, DIMS(2, 3, 4, 5), DIMS(60, 1, 15, 3), WEFT_DATA_FLOAT, "sum");
    ops_made[1] = pointwise(WEFT_POINTWISE_CMP_GT, sum, bias, compared);
    check_shape(compared, DIMS(2, 3, 4, 5), DIMS(60, 1, 15, 3), WEFT_DATA_BYTE_BOOLEAN, "compared");
    ops_made[2] = pointwise(WEFT_POINTWISE_MUL, sum, compared, y);
    check_shape(y, DIMS(2, 3, 4, 5), DIMS(60, 1, 15, 3), WEFT_DATA_FLOAT, "y");
    check_shape(bias, DIMS(1, 3, 1, 1), DIMS(3, 1, 1, 1), WEFT_DATA_HALF, "bias");
    desc graph = graph_of(3, ops_made);
    drop(x), drop(bias), drop(sum), drop(compared), drop(y), drop(graph);

    desc a = typed_tensor(1, WEFT_DATA_BFLOAT16, DIMS(4, 2, 3), UNSET);
    desc b = typed_tensor(2, WEFT_DATA_BFLOAT16, DIMS(2, 3, 5), DIMS(15, 1, 3));
    desc c = make(WEFT_BACKEND_TENSOR_DESCRIPTOR), d = virtual_tensor(4);
    MUST(set_number(c, WEFT_ATTR_TENSOR_UNIQUE_ID, 3));
    MUST(weftBackendFinalize(c));
    desc op = matmul(a, b, c), other = matmul(a, b, d);
    check_shape(c, DIMS(4, 2, 5), DIMS(10, 5, 1), WEFT_DATA_BFLOAT16, "C");
    check_shape(d, DIMS(4, 2, 5), DIMS(10, 5, 1), WEFT_DATA_FLOAT, "virtual C");
    drop(op), drop(other), drop(a), drop(b), drop(c), drop(d);

    desc wide = typed_tensor(1, WEFT_DATA_FLOAT, DIMS(2, 3), UNSET),
         told = typed_tensor(2, WEFT_DATA_HALF, DIMS(2, 3), DIMS(1, 2));
    op = pointwise(WEFT_POINTWISE_EXP, wide, NULL, told);
    check_shape(told, DIMS(2, 3), DIMS(1, 2), WEFT_DATA_HALF, "an output that says all: nothing is changed");
    drop(op), drop(told);
    told = typed_tensor(2, WEFT_DATA_HALF, DIMS(3, 3), UNSET);
    op = open_pointwise(WEFT_POINTWISE_EXP, wide, NULL, told);
    REFUSED(weftBackendFinalize(op), WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "pointwise: x with dims [2,3] does not broadcast to [3,3]. Make each of its dims 1 or equal, of the same "
            "rank.");
    drop(op), drop(told), drop(wide);
}

/* A result has the same order of dimensions as its operand, even if extents are 1. Strides of such dimensions are
   ignored: the other dimensions decide the order, and the result is packed in it. */
static void test_order_of_extents_of_one(void) {
    static const struct {
        struct extents dims, strides, expected;
    } cases[] = {
        {DIMS(2, 1, 5, 4), DIMS(20, 1, 4, 1), DIMS(20, 1, 4, 1)},   /* NHWC with one channel */
        {DIMS(2, 1, 5, 4), DIMS(20, 20, 4, 1), DIMS(20, 20, 4, 1)}, /* NCHW with one channel */
        {DIMS(2, 3, 1, 1), DIMS(3, 1, 3, 3), DIMS(3, 1, 3, 3)},     /* NHWC with one pixel */
        {DIMS(2, 3, 1, 1), DIMS(3, 1, 1, 1), DIMS(3, 1, 1, 1)},
        {DIMS(1, 3, 4, 5), DIMS(60, 1, 15, 3), DIMS(60, 1, 15, 3)},
        {DIMS(2, 1, 4, 1), DIMS(8, 1, 2, 2), DIMS(4, 1, 1, 1)}, /* with gaps, which a result does not have */
        {DIMS(2, 1, 5, 4), DIMS(40, 1, 8, 2), DIMS(20, 1, 4, 1)},
        {DIMS(2, 3), DIMS(0, 0), DIMS(3, 1)}, /* one element, broadcast everywhere */
        {DIMS(2, 3, 4), DIMS(0, 0, 0), DIMS(12, 4, 1)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "y of case %zu", i);
        desc x = typed_tensor(1, WEFT_DATA_FLOAT, cases[i].dims, cases[i].strides);
        desc y = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
        MUST(set_number(y, WEFT_ATTR_TENSOR_UNIQUE_ID, 2));
        MUST(weftBackendFinalize(y));
        desc op = pointwise(WEFT_POINTWISE_NEG, x, NULL, y);
        check_shape(y, cases[i].dims, cases[i].expected, WEFT_DATA_FLOAT, name);
        drop(op), drop(x), drop(y);
    }
}

int main(void) {
    RUN(test_tensor_rules());
    RUN(test_huge_tensors());
    RUN(test_scalars());
    RUN(test_ragged());
    RUN(test_failed_finalize_is_repaired());
    RUN(test_operation_rules());
    RUN(test_graph_rules());
    RUN(test_virtual_without_producer());
    RUN(test_computes_nothing());
    RUN(test_order_and_dead_ends());
    RUN(test_inference_through_a_chain());
    RUN(test_order_of_extents_of_one());
    return harness_end();
}
