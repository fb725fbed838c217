/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every exported function with every kind of misuse. Checks the status and the whole message of each refusal, and
   that valid calls still work. Attribute access is also swept over every row of every descriptor kind. */
#include "graph/graph.h"
#include "graph/ops.h"
#include "harness.h"
#include "plan/schemas.h"

#include <pthread.h>

enum { NO_KIND = 999, NO_ATTRIBUTE = 999999 };

/* relu(x) on [2,3]: the graph 'sixteen letters!'. */
static desc relu_graph(void) {
    desc x = tensor(1, DIMS(2, 3)), y = tensor(2, DIMS(2, 3));
    desc op = pointwise(WEFT_POINTWISE_RELU_FWD, x, NULL, y), graph = open_graph(1, &op);
    MUST(set_text(graph, WEFT_ATTR_NAME_EXT, "sixteen letters!")); /* copying it fills its storage to the last byte */
    drop(x), drop(y), drop(op);
    return finalized(graph);
}

/* ---- Version and errors ------------------------------------------------------------------------------------------ */

static void test_version_and_names(void) {
    CHECK(weftGetVersion() == WEFT_MAJOR * 10000 + WEFT_MINOR * 100 + WEFT_PATCHLEVEL, "%zu", weftGetVersion());
    CHECK(!strcmp(weftGetErrorString(WEFT_STATUS_SUCCESS), "WEFT_STATUS_SUCCESS"), "name of success");
    CHECK(!strcmp(weftGetErrorString(WEFT_STATUS_BAD_PARAM_CYCLE_EXT), "WEFT_STATUS_BAD_PARAM_CYCLE_EXT"), "name");
    CHECK(!strcmp(weftGetErrorString((weftStatus_t)77), "WEFT_STATUS_UNKNOWN"), "name of no status");
}

static void *see_no_error(void *unused) {
    (void)unused;
    CHECK(!*last_error(), "another thread sees '%s'", last_error());
    REFUSED(weftCreate(NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftCreate: handle is NULL. Give the address of a weftHandle_t.");
    return NULL;
}

static void test_last_error(void) {
    static const char message[] =
        "weftBackendSetAttribute: the descriptor is NULL. Create one with weftBackendCreateDescriptor.";
    int64_t one = 1;
    REFUSED(set_number(NULL, WEFT_ATTR_TENSOR_UNIQUE_ID, one), WEFT_STATUS_BAD_PARAM_NULL_POINTER, message);
    pthread_t thread;
    pthread_create(&thread, NULL, see_no_error, NULL);
    pthread_join(thread, NULL);
    CHECK(!strcmp(last_error(), message), "reading keeps the text, other threads leave it alone: '%s'", last_error());

    char cut[10] = "?????????";
    weftGetLastErrorString(cut, 5);
    CHECK(!strcmp(cut, "weft") && cut[5] == '?', "cut to 5 bytes: '%s'", cut);
    weftGetLastErrorString(cut, 1);
    CHECK(!*cut, "cut to 1 byte: '%s'", cut);
    weftGetLastErrorString(NULL, 0);
    weftGetLastErrorString(NULL, 10);
    CHECK(*weftGetErrorString(WEFT_STATUS_SUCCESS) && weftGetVersion() && *last_error(), "asking keeps the text");
    MUST(weftDestroy(NULL));
    CHECK(!*last_error(), "success clears the text, which is '%s'", last_error());
}

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

static void test_handles(void) {
    weftHandle_t handle = NULL;
    int mark;
    weftStream_t stream = &mark;
    REFUSED(weftCreate(NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftCreate: handle is NULL. Give the address of a weftHandle_t.");
    REFUSED(weftCreateForDevice(NULL, WEFT_DEVICE_CPU, 0), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftCreateForDevice: handle is NULL. Give the address of a weftHandle_t.");
    REFUSED(weftCreateForDevice(&handle, WEFT_DEVICE_CPU, 1), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "no device cpu:1: a machine has one CPU device, cpu:0, and one cuda device per GPU. Use cpu:0 or "
            "cuda:0.");
    REFUSED(weftCreateForDevice(&handle, WEFT_DEVICE_CPU, -1), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "no device cpu:-1: a machine has one CPU device, cpu:0, and one cuda device per GPU. Use cpu:0 or "
            "cuda:0.");
    REFUSED(weftCreateForDevice(&handle, (weftDeviceKind_t)7, 0), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "weftCreateForDevice: there is no device kind 7. Use WEFT_DEVICE_CPU (0) or WEFT_DEVICE_CUDA (1).");
    CHECK(!handle, "a refused weftCreateForDevice leaves the handle alone");
    MUST(weftCreateForDevice(&handle, WEFT_DEVICE_CPU, 0));
    MUST(weftDestroy(handle));
    MUST(weftCreate(&handle));

    MUST(weftGetStream(handle, &stream));
    CHECK(!stream, "a fresh handle is on the default stream");
    MUST(weftSetStream(handle, &mark));
    MUST(weftGetStream(handle, &stream));
    CHECK(stream == &mark, "the stream that was set");
    REFUSED(weftSetStream(NULL, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftSetStream: the handle is NULL. Create one with weftCreate.");
    REFUSED(weftGetStream(NULL, &stream), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftGetStream: the handle is NULL. Create one with weftCreate.");
    REFUSED(weftGetStream(handle, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftGetStream: stream is NULL. Give the address of a weftStream_t.");
    desc no_handle = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    REFUSED(weftDestroy((weftHandle_t)(void *)no_handle), WEFT_STATUS_BAD_PARAM,
            "weftDestroy: the handle is invalid. Use a handle from weftCreate that has not been destroyed.");
    drop(no_handle);
    MUST(weftDestroy(handle));
    MUST(weftDestroy(NULL));
}

/* ---- Descriptors: life ------------------------------------------------------------------------------------------- */

static void test_life(void) {
    desc made = NULL;
    REFUSED(weftBackendCreateDescriptor(WEFT_BACKEND_TENSOR_DESCRIPTOR, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftBackendCreateDescriptor: descriptor is NULL. Give the address of a weftBackendDescriptor_t.");
    REFUSED(weftBackendCreateDescriptor((weftBackendDescriptorType_t)NO_KIND, &made), WEFT_STATUS_NOT_SUPPORTED,
            "weftBackendCreateDescriptor: this version has no descriptor kind 999. See weftDescribe for those it has.");
    CHECK(!made, "a refused weftBackendCreateDescriptor leaves the descriptor alone");
    MUST(weftBackendDestroyDescriptor(NULL));

    weftHandle_t handle = cpu_handle();
    desc not_one = (desc)(void *)handle;
    int64_t number = 1;
    static const char dead[] = "%s: this is not a valid descriptor. Use one that weftBackendCreateDescriptor created "
                               "and that is not destroyed.";
    REFUSED(weftBackendDestroyDescriptor(not_one), WEFT_STATUS_BAD_PARAM, dead, "weftBackendDestroyDescriptor");
    REFUSED(weftBackendFinalize(not_one), WEFT_STATUS_BAD_PARAM, dead, "weftBackendFinalize");
    REFUSED(set_number(not_one, WEFT_ATTR_TENSOR_UNIQUE_ID, 1), WEFT_STATUS_BAD_PARAM, dead, "weftBackendSetAttribute");
    REFUSED(weftBackendGetAttribute(not_one, WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT64, 1, NULL, &number),
            WEFT_STATUS_BAD_PARAM, dead, "weftBackendGetAttribute");
    MUST(weftDestroy(handle));
    static const char null[] = "%s: the descriptor is NULL. Create one with weftBackendCreateDescriptor.";
    REFUSED(weftBackendFinalize(NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER, null, "weftBackendFinalize");
    REFUSED(weftBackendGetAttribute(NULL, WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT64, 1, NULL, &number),
            WEFT_STATUS_BAD_PARAM_NULL_POINTER, null, "weftBackendGetAttribute");

    desc t = open_tensor(3, DIMS(2, 3));
    MUST(weftBackendFinalize(t));
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT,
            "tensor (uid 3) is finalized already. Finalize a descriptor once.");
    REFUSED(set_number(t, WEFT_ATTR_TENSOR_UNIQUE_ID, 4), WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT,
            "tensor (uid 3) is finalized: its attributes cannot change. Create a new descriptor.");
    drop(t);
    t = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM,
            "tensor: attribute uid (%d) is required and was not set. Set it: number that identifies the tensor in its "
            "graph "
            "and in variant packs; unique in a graph.",
            WEFT_ATTR_TENSOR_UNIQUE_ID);
    MUST(set_number(t, WEFT_ATTR_TENSOR_UNIQUE_ID, 5));
    MUST(weftBackendFinalize(t)); /* repaired */
    CHECK(get_number(t, WEFT_ATTR_TENSOR_UNIQUE_ID) == 5, "the uid that was set");
    drop(t);
}

/* ---- Descriptors: set -------------------------------------------------------------------------------------------- */

static void test_set(void) {
    desc t = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    int64_t numbers[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    double real = 1;
    REFUSED(set_number(t, (weftBackendAttributeName_t)NO_ATTRIBUTE, 1), WEFT_STATUS_BAD_PARAM,
            "tensor has no attribute 999999. See weftDescribe for those it has.");
    REFUSED(set_number(t, WEFT_ATTR_OPERATION_MATMUL_ADESC, 1), WEFT_STATUS_BAD_PARAM,
            "tensor has no attribute %d. See weftDescribe for those it has.", WEFT_ATTR_OPERATION_MATMUL_ADESC);
    REFUSED(weftBackendSetAttribute(t, WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_DOUBLE, 1, &real),
            WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
            "tensor: attribute uid expects elements INT64, got DOUBLE. Pass that type.");
    REFUSED(weftBackendSetAttribute(t, WEFT_ATTR_TENSOR_UNIQUE_ID, (weftBackendAttributeType_t)77, 1, &real),
            WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
            "tensor: attribute uid expects elements INT64, got of unknown type. Pass that type.");
    REFUSED(weftBackendSetAttribute(t, WEFT_ATTR_TENSOR_UNIQUE_ID, (weftBackendAttributeType_t)-1, 1, &real),
            WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
            "tensor: attribute uid expects elements INT64, got of unknown type. Pass that type.");
    REFUSED(set_numbers(t, WEFT_ATTR_TENSOR_UNIQUE_ID, 2, numbers), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor: attribute uid expects 1 element, got 2. Pass that number.");
    REFUSED(set_numbers(t, WEFT_ATTR_TENSOR_UNIQUE_ID, 0, numbers), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor: attribute uid expects 1 element, got 0. Pass that number.");
    REFUSED(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, 9, numbers), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor: attribute dims expects 0..8 elements, got 9. Pass a count in that range.");
    REFUSED(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, -1, numbers), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor: attribute dims expects 0..8 elements, got -1. Pass a count in that range.");
    REFUSED(set_numbers(t, WEFT_ATTR_NAME_EXT, 1, numbers), WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
            "tensor: attribute name expects elements CHAR, got INT64. Pass that type.");
    REFUSED(
        weftBackendSetAttribute(t, WEFT_ATTR_NAME_EXT, WEFT_TYPE_CHAR, INT64_MAX, "x"),
        WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
        "tensor: attribute name expects 0..2147483647 elements, got 9223372036854775807. Pass a count in that range.");
    REFUSED(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, 2, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "tensor: attribute dims: the array of 2 elements is NULL. Give its address.");
    REFUSED(set_enum(t, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, 24), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor: attribute data_type is 24, expected 0..23. Set a value in that range.");
    REFUSED(set_enum(t, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, -1), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor: attribute data_type is -1, expected 0..23. Set a value in that range.");
    REFUSED(
        set_enum(t, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_COMPLEX_FP32),
        WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
        "tensor: attribute data_type: data type 20 is not supported. Use one of the types that weftDescribe lists.");
    REFUSED(set_number(t, WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, 0), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor: attribute alignment is 0, expected 1..4096. Set a value in that range.");
    MUST(set_number(t, WEFT_ATTR_TENSOR_UNIQUE_ID, -7)); /* any number names a tensor */
    MUST(set_number(t, WEFT_ATTR_TENSOR_UNIQUE_ID, 7));  /* set again: replaces */
    MUST(set_text(t, WEFT_ATTR_NAME_EXT, "bias"));
    for (int64_t at = 0; at < 4; at++) { /* one NUL may end a name */
        char odd[5] = "bias";
        odd[at] = '\0';
        REFUSED(weftBackendSetAttribute(t, WEFT_ATTR_NAME_EXT, WEFT_TYPE_CHAR, 5, odd), WEFT_STATUS_BAD_PARAM,
                "tensor 'bias' (uid 7): attribute name has a NUL at character %d of 5. Leave it out.", (int)at);
    }
    MUST(weftBackendSetAttribute(t, WEFT_ATTR_NAME_EXT, WEFT_TYPE_CHAR, 5, "bias"));
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, 2, numbers));
    MUST(set_numbers(t, WEFT_ATTR_TENSOR_DIMENSIONS, 0, NULL)); /* count 0 resets the dims */
    REFUSED(set_number(t, (weftBackendAttributeName_t)NO_ATTRIBUTE, 1), WEFT_STATUS_BAD_PARAM,
            "tensor 'bias' (uid 7) has no attribute 999999. See weftDescribe for those it has.");
    drop(t);
}

static void test_set_descriptors(void) {
    desc x = tensor(1, DIMS(2)), open = open_tensor(2, DIMS(2)), graph = relu_graph();
    desc op = make(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR), list = make(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    desc held[2] = {x, NULL};
    weftHandle_t handle = cpu_handle();
    REFUSED(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "pointwise: attribute x: element 0 is NULL. Give a finalized descriptor.");
    REFUSED(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, (desc)(void *)handle), WEFT_STATUS_BAD_PARAM,
            "pointwise: attribute x: element 0 is not a valid descriptor. Pass one created by "
            "weftBackendCreateDescriptor.");
    REFUSED(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, open), WEFT_STATUS_BAD_PARAM_NOT_FINALIZED,
            "pointwise: attribute x: tensor (uid 2) is not finalized. Finalize it first.");
    REFUSED(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, graph), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "pointwise: attribute x expects descriptors of kind %d, got graph 'sixteen letters!' of kind %d. Pass a "
            "descriptor of the expected kind.",
            WEFT_BACKEND_TENSOR_DESCRIPTOR, WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    REFUSED(set_held(list, WEFT_ATTR_OPERATIONGRAPH_OPS, x), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "graph: attribute ops expects any operation, got tensor (uid 1) of kind %d. Pass a descriptor of the "
            "expected kind.",
            WEFT_BACKEND_TENSOR_DESCRIPTOR);
    REFUSED(weftBackendSetAttribute(list, WEFT_ATTR_OPERATIONGRAPH_OPS, WEFT_TYPE_BACKEND_DESCRIPTOR, 2, held),
            WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "graph: attribute ops expects any operation, got tensor (uid 1) of kind %d. Pass a descriptor of the "
            "expected kind.",
            WEFT_BACKEND_TENSOR_DESCRIPTOR);
    REFUSED(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, op), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "pointwise: attribute x expects descriptors of kind %d, got pointwise of kind %d. Pass a descriptor of the "
            "expected kind.",
            WEFT_BACKEND_TENSOR_DESCRIPTOR, WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    REFUSED(weftBackendFinalize(list), WEFT_STATUS_BAD_PARAM,
            "graph: attribute ops (%d) is required and was not set. Set it: the operations, in any order.",
            WEFT_ATTR_OPERATIONGRAPH_OPS);
    REFUSED(set_number(list, WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, 1), WEFT_STATUS_BAD_PARAM,
            "graph: attribute engine_global_count is a result. Read it with weftBackendGetAttribute.");
    MUST(weftDestroy(handle));
    drop(x), drop(open), drop(graph), drop(op), drop(list);
}

/* Elements whose type differs from the row's but is accepted. */
static void test_conversions(void) {
    desc op = make(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR), parameters = make(WEFT_BACKEND_POINTWISE_DESCRIPTOR);
    float single = 0.1f, got_single = 0;
    double real = 0.1, got_real = 0;
    MUST(set_enum(parameters, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, WEFT_POINTWISE_RELU_FWD));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_POINTWISE_RELU_UPPER_CLIP, WEFT_TYPE_FLOAT, 1, &single));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_POINTWISE_RELU_LOWER_CLIP, WEFT_TYPE_DOUBLE, 1, &real));
    MUST(weftBackendFinalize(parameters));
    MUST(
        weftBackendGetAttribute(parameters, WEFT_ATTR_POINTWISE_RELU_UPPER_CLIP, WEFT_TYPE_DOUBLE, 1, NULL, &got_real));
    CHECK(got_real == (double)0.1f, "a DOUBLE attribute set as FLOAT: %.17g", got_real);
    MUST(weftBackendGetAttribute(parameters, WEFT_ATTR_POINTWISE_RELU_LOWER_CLIP, WEFT_TYPE_FLOAT, 1, NULL,
                                 &got_single));
    CHECK(got_single == 0.1f, "a DOUBLE attribute read as FLOAT: %.17g", got_single);
    int32_t narrow = 0;
    MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_POINTWISE_ALPHA1, WEFT_TYPE_DOUBLE, 1, &real));
    drop(parameters), drop(op);

    desc t = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    narrow = 12;
    MUST(weftBackendSetAttribute(t, WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT32, 1, &narrow));
    MUST(weftBackendSetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT32, 2, (int32_t[]){3, 4}));
    MUST(weftBackendFinalize(t));
    CHECK(get_number(t, WEFT_ATTR_TENSOR_UNIQUE_ID) == 12, "an INT64 attribute set as INT32");
    narrow = 0;
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT32, 1, NULL, &narrow));
    CHECK(narrow == 12, "an INT64 attribute read as INT32: %d", narrow);
    drop(t);
    t = tensor(INT64_C(1) << 40, UNSET);
    REFUSED(
        weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT32, 1, NULL, &narrow),
        WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
        "tensor (uid 1099511627776): attribute uid is 1099511627776, which does not fit into INT32. Request INT64.");
    drop(t);

    desc resample = make(WEFT_BACKEND_RESAMPLE_DESCRIPTOR);
    weftFraction_t bad = {1, 0}, half[2] = {{1, 2}, {1, 2}}, got[2] = {0};
    int64_t whole[2] = {2, 3};
    REFUSED(weftBackendSetAttribute(resample, WEFT_ATTR_RESAMPLE_STRIDES, WEFT_TYPE_FRACTION, 1, &bad),
            WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "resample parameters: attribute stride: element 0 has denominator 0. A denominator is at least 1.");
    MUST(set_enum(resample, WEFT_ATTR_RESAMPLE_MODE, WEFT_TYPE_RESAMPLE_MODE, WEFT_RESAMPLE_BILINEAR));
    MUST(set_numbers(resample, WEFT_ATTR_RESAMPLE_STRIDES, 2, whole));
    MUST(weftBackendSetAttribute(resample, WEFT_ATTR_RESAMPLE_PRE_PADDINGS, WEFT_TYPE_FRACTION, 2, half));
    MUST(set_numbers(resample, WEFT_ATTR_RESAMPLE_WINDOW_DIMS, 2, whole));
    MUST(weftBackendFinalize(resample));
    MUST(weftBackendGetAttribute(resample, WEFT_ATTR_RESAMPLE_STRIDES, WEFT_TYPE_FRACTION, 2, &(int64_t){0}, got));
    CHECK(got[1].numerator == 3 && got[1].denominator == 1, "a FRACTION attribute set as INT64");
    MUST(weftBackendGetAttribute(resample, WEFT_ATTR_RESAMPLE_STRIDES, WEFT_TYPE_INT64, 2, &(int64_t){0}, whole));
    CHECK(whole[0] == 2 && whole[1] == 3, "a FRACTION attribute read as INT64");
    REFUSED(weftBackendGetAttribute(resample, WEFT_ATTR_RESAMPLE_PRE_PADDINGS, WEFT_TYPE_INT64, 1, NULL, whole),
            WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
            "resample parameters: attribute pre_padding is 1/2, not an integer. Request FRACTION.");
    drop(resample);
}

/* ---- Descriptors: get -------------------------------------------------------------------------------------------- */

static void test_get(void) {
    desc t = open_tensor(9, DIMS(2, 3, 4));
    int64_t numbers[4] = {-1, -1, -1, -1}, count = -1;
    REFUSED(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT64, 1, &count, numbers),
            WEFT_STATUS_BAD_PARAM_NOT_FINALIZED,
            "tensor (uid 9) is not finalized: attribute uid cannot be read yet. Finalize it.");
    MUST(set_text(t, WEFT_ATTR_NAME_EXT, "w"));
    MUST(weftBackendFinalize(t));
    REFUSED(weftBackendGetAttribute(t, (weftBackendAttributeName_t)NO_ATTRIBUTE, WEFT_TYPE_INT64, 1, &count, numbers),
            WEFT_STATUS_BAD_PARAM, "tensor 'w' (uid 9) has no attribute 999999. See weftDescribe for those it has.");
    REFUSED(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_CHAR, 1, &count, numbers),
            WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
            "tensor 'w' (uid 9): attribute dims has elements INT64, got CHAR. Request that type.");
    REFUSED(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, (weftBackendAttributeType_t)77, 1, &count, numbers),
            WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
            "tensor 'w' (uid 9): attribute dims has elements INT64, got of unknown type. Request that type.");
    REFUSED(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, -1, &count, numbers),
            WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor 'w' (uid 9): attribute dims: -1 elements requested. Request 0 or more.");
    CHECK(count == -1 && numbers[0] == -1, "refusals write nothing");

    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 0, &count, numbers));
    CHECK(count == 3 && numbers[0] == -1, "requested 0 asks for the count alone: %lld", (long long)count);
    count = -1;
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 4, &count, NULL));
    CHECK(count == 3, "a NULL array asks for the count alone: %lld", (long long)count);
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 2, &count, numbers));
    CHECK(count == 3 && numbers[1] == 3 && numbers[2] == -1, "no more than requested is written");
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 4, &count, numbers));
    CHECK(count == 3 && numbers[2] == 4 && numbers[3] == -1, "no more than there is is written");
    numbers[0] = -1;
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 1, NULL, numbers));
    CHECK(numbers[0] == 2, "count may be NULL when one is requested");
    REFUSED(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 3, NULL, numbers),
            WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "tensor 'w' (uid 9): attribute dims: the address of the count is NULL and 3 elements are requested. It may "
            "be NULL only if one element is requested.");
    REFUSED(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 0, NULL, NULL),
            WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "tensor 'w' (uid 9): attribute dims: the address of the count is NULL and 0 elements are requested. It may "
            "be NULL only if one element is requested.");
    MUST(weftBackendGetAttribute(t, WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                 numbers));
    CHECK(count == 0, "an unset descriptor attribute has no elements: %lld", (long long)count);
    char *name = get_text(t, WEFT_ATTR_NAME_EXT, &count);
    CHECK(count == 1 && !strcmp(name, "w"), "name '%s'", name);
    free(name);
    drop(t);
}

/* Descriptors are returned as copies into descriptors that the caller created. */
static void test_get_descriptors(void) {
    desc graph = relu_graph(), engine = make(WEFT_BACKEND_ENGINE_DESCRIPTOR);
    MUST(set_held(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, graph));
    MUST(set_number(engine, WEFT_ATTR_ENGINE_GLOBAL_INDEX, reference_index(graph)));
    MUST(set_text(engine, WEFT_ATTR_NAME_EXT, "e"));
    MUST(weftBackendFinalize(engine));
    desc config = make(WEFT_BACKEND_ENGINECFG_DESCRIPTOR), heuristics = make(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR);
    MUST(set_held(config, WEFT_ATTR_ENGINECFG_ENGINE, engine));
    MUST(weftBackendFinalize(config));
    MUST(set_held(heuristics, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
    MUST(set_enum(heuristics, WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, WEFT_HEUR_MODE_A));
    MUST(weftBackendFinalize(heuristics));

    desc fresh = NULL, wrong = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    int64_t count = -1;
    REFUSED(
        weftBackendGetAttribute(config, WEFT_ATTR_ENGINECFG_ENGINE, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count, &fresh),
        WEFT_STATUS_BAD_PARAM_NULL_POINTER,
        "engine config: attribute engine is copied into descriptors of the caller. Fill the array with newly created "
        "ones.");
    REFUSED(
        weftBackendGetAttribute(config, WEFT_ATTR_ENGINECFG_ENGINE, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count, &wrong),
        WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
        "cannot copy engine 'e' into tensor. Create the target with the same kind.");
    fresh = make(WEFT_BACKEND_ENGINE_DESCRIPTOR);
    MUST(weftBackendGetAttribute(config, WEFT_ATTR_ENGINECFG_ENGINE, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count, &fresh));
    CHECK(count == 1, "one engine");
    REFUSED(
        weftBackendGetAttribute(config, WEFT_ATTR_ENGINECFG_ENGINE, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count, &fresh),
        WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT,
        "engine 'e' is finalized and cannot receive a copy. Create a new one.");
    CHECK(get_number(fresh, WEFT_ATTR_ENGINE_GLOBAL_INDEX) == reference_index(graph), "the copy's index");

    desc again = make(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    MUST(weftBackendGetAttribute(fresh, WEFT_ATTR_ENGINE_OPERATION_GRAPH, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                 &again));
    drop(fresh);
    CHECK(get_number(again, WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) == reference_index(graph) + 1,
          "engine count");
    REFUSED(weftBackendFinalize(again), WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT,
            "graph 'sixteen letters!' is finalized already. Finalize a descriptor once.");
    fresh = open_plan(again, reference_index(again)); /* a plan can be built from the copied graph */
    MUST(weftBackendFinalize(fresh));
    drop(fresh), drop(again);

    MUST(weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, 0, &count,
                                 NULL));
    CHECK(count == cpu_engine_count(graph), "each engine serves the graph, got %lld", (long long)count);
    desc results[64];
    for (int64_t i = 0; i < count; i++)
        results[i] = make(WEFT_BACKEND_ENGINECFG_DESCRIPTOR);
    drop(graph), drop(engine), drop(config);
    MUST(weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, count, &count,
                                 results));
    drop(heuristics);
    for (int64_t i = 0; i < count; i++) {
        desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, results[i]));
        drop(results[i]);
        MUST(weftBackendFinalize(plan));
        drop(plan);
    }
    drop(wrong);
}

/* Each descriptor may be destroyed as soon as the next one references it, and also in the opposite order. */
static void test_destruction_orders(void) {
    enum { COUNT = 6 };
    for (int order = 0; order < 720; order += 7) {
        desc all[COUNT];
        all[0] = tensor(1, DIMS(2));
        all[1] = tensor(2, DIMS(2));
        all[2] = pointwise(WEFT_POINTWISE_EXP, all[0], NULL, all[1]);
        all[3] = finalized(open_graph(1, &all[2]));
        all[4] = finalized(open_config(all[3], reference_index(all[3])));
        all[5] = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        MUST(set_held(all[5], WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, all[4]));
        MUST(weftBackendFinalize(all[5]));
        int code = order;
        for (int left = COUNT; left > 0; left--) { /* the order-th permutation */
            int pick = code % left;
            code /= left;
            drop(all[pick]);
            memmove(all + pick, all + pick + 1, sizeof *all * (size_t)(left - pick - 1));
        }
    }
}

/* ---- Every row of every kind ------------------------------------------------------------------------------------- */

static void sweep_row(const struct schema *schema, const struct row *row) {
    static const int64_t zeros[32];
    desc d = make(schema->kind);
    int64_t count = 0;
    const char *kind = schema->name, *key = row->key;
    if (row->role == ROLE_RESULT) {
        REFUSED(weftBackendSetAttribute(d, row->name, row->type, 1, zeros), WEFT_STATUS_BAD_PARAM,
                "%s: attribute %s is a result. Read it with weftBackendGetAttribute.", kind, key);
    } else {
        long long least = row->storage == STORE_VALUE;
        long long most = row->storage == STORE_VALUE ? 1 : row->storage == STORE_DIMS ? WEFT_DIM_MAX : INT32_MAX;
        REFUSED(weftBackendSetAttribute(d, row->name, WEFT_TYPE_SIGNAL_MODE, 1, zeros),
                WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                "%s: attribute %s expects elements %s, got SIGNAL_MODE. Pass that type.", kind, key,
                attribute_type_name(schema_find_row(schema, row->name)->type));
        char expected[64];
        snprintf(expected, sizeof expected, "%lld..%lld elements", least, most);
        for (int k = 0; k < 2; k++) {
            long long requested = k ? most + 1 : -1;
            REFUSED(weftBackendSetAttribute(d, row->name, row->type, requested, zeros),
                    WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: attribute %s expects %s, got %lld. %s.", kind, key,
                    least == most ? "1 element" : expected, requested,
                    least == most ? "Pass that number" : "Pass a count in that range");
        }
        REFUSED(weftBackendSetAttribute(d, row->name, row->type, 1, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
                "%s: attribute %s: the array of 1 element is NULL. Give its address.", kind, key);
        if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR)
            REFUSED(weftBackendSetAttribute(d, row->name, row->type, 1, zeros), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
                    "%s: attribute %s: element 0 is NULL. Give a finalized descriptor.", kind, key);
        if (row->most > row->least)
            REFUSED(weftBackendSetAttribute(d, row->name, row->type, 1, (int64_t[]){row->least - 1}),
                    WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                    "%s: attribute %s is %lld, expected %lld..%lld. Set a value in that range.", kind, key,
                    (long long)row->least - 1, (long long)row->least, (long long)row->most);
    }
    if (row->name != WEFT_ATTR_TENSOR_UNIQUE_ID)
        REFUSED(weftBackendGetAttribute(d, row->name, row->type, 0, &count, NULL), WEFT_STATUS_BAD_PARAM_NOT_FINALIZED,
                "%s is not finalized: attribute %s cannot be read yet. Finalize it.", kind, key);
    drop(d);
}

static void sweep_schema(const struct schema *schema) {
    CHECK(schema->row_count <= 64, "%s: set_rows has one bit per row, there are %d", schema->name, schema->row_count);
    for (int i = 0; i < schema->row_count; i++) {
        const struct row *row = &schema->rows[i];
        bool is_number = row->type == WEFT_TYPE_INT64 || row->type == WEFT_TYPE_INT32 || row->least == 0;
        CHECK(row->most <= row->least || is_number || row->type == WEFT_TYPE_POINTWISE_MODE,
              "%s: %s has bounds that are not checked", schema->name, row->key);
        CHECK(row->name != WEFT_ATTR_NAME_EXT, "%s: %s is the common name", schema->name, row->key);
        sweep_row(schema, row);
    }
    desc d = make(schema->kind);
    REFUSED(set_number(d, (weftBackendAttributeName_t)NO_ATTRIBUTE, 1), WEFT_STATUS_BAD_PARAM,
            "%s has no attribute 999999. See weftDescribe for those it has.", schema->name);
    drop(d);
}

static void test_every_row(void) {
    sweep_schema(&tensor_schema);
    sweep_schema(&graph_schema);
    for (int i = 0; plan_schemas[i]; i++)
        sweep_schema(plan_schemas[i]);
    for (int i = 0; ops[i]; i++) {
        sweep_schema(&ops[i]->schema);
        if (ops[i]->parameters)
            sweep_schema(ops[i]->parameters);
    }
}

/* ---- Execution: misuse of the entry points ----------------------------------------------------------------------- */

static void test_execute(void) {
    weftHandle_t handle = cpu_handle();
    _Alignas(16) float in[6] = {-1, 2, -3, 4, -5, 6}, out[6] = {0};
    desc graph = relu_graph(), plan = plan_of(graph), open = open_plan(graph, reference_index(graph));
    desc pack = open_pack(2, (int64_t[]){1, 2}, (void *[]){in, out});
    size_t bytes = 1;
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM_NOT_FINALIZED,
            "weftBackendExecute: variant pack is not finalized. Call weftBackendFinalize on it first.");
    MUST(weftBackendFinalize(pack));
    REFUSED(weftBackendExecute(NULL, plan, pack), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftBackendExecute: the handle is NULL. Create one with weftCreate.");
    REFUSED(weftBackendExecute(handle, NULL, pack), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftBackendExecute: the descriptor is NULL. Create one with weftBackendCreateDescriptor.");
    REFUSED(weftBackendExecute(handle, plan, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftBackendExecute: the descriptor is NULL. Create one with weftBackendCreateDescriptor.");
    REFUSED(weftBackendExecute(handle, graph, pack), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "weftBackendExecute: expected a descriptor of kind execution plan, got graph 'sixteen letters!'. Pass one "
            "of that kind.");
    REFUSED(
        weftBackendExecute(handle, plan, plan), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
        "weftBackendExecute: expected a descriptor of kind variant pack, got execution plan. Pass one of that kind.");
    REFUSED(weftBackendExecute(handle, open, pack), WEFT_STATUS_BAD_PARAM_NOT_FINALIZED,
            "weftBackendExecute: execution plan is not finalized. Call weftBackendFinalize on it first.");
    MUST(weftBackendExecute(handle, plan, pack));
    CHECK(out[0] == 0 && out[1] == 2 && out[4] == 0 && out[5] == 6, "relu");

    REFUSED(weftGetExecutionPlanWorkspaceSize(NULL, plan, pack, &bytes), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftGetExecutionPlanWorkspaceSize: the handle is NULL. Create one with weftCreate.");
    REFUSED(weftGetExecutionPlanWorkspaceSize(handle, pack, pack, &bytes), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "weftGetExecutionPlanWorkspaceSize: expected a descriptor of kind execution plan, got variant pack. Pass "
            "one of that kind.");
    REFUSED(weftGetExecutionPlanWorkspaceSize(handle, plan, graph, &bytes), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "weftGetExecutionPlanWorkspaceSize: expected a descriptor of kind variant pack, got graph 'sixteen "
            "letters!'. Pass one of that kind.");
    REFUSED(weftGetExecutionPlanWorkspaceSize(handle, plan, pack, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftGetExecutionPlanWorkspaceSize: workspaceSize is NULL. Give the address of a size_t.");
    MUST(weftGetExecutionPlanWorkspaceSize(handle, plan, pack, &bytes));
    CHECK(bytes == 0, "one operation needs no workspace, got %zu", bytes);

    uint64_t pointers[2] = {(uint64_t)(uintptr_t)in, (uint64_t)(uintptr_t)out};
    REFUSED(weftExecute(NULL, 2, pointers, NULL, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftExecute: the descriptor is NULL. Create one with weftBackendCreateDescriptor.");
    REFUSED(weftExecute(graph, 2, pointers, NULL, NULL), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "weftExecute: expected a descriptor of kind execution plan, got graph 'sixteen letters!'. Pass one of that "
            "kind.");
    REFUSED(weftExecute(open, 2, pointers, NULL, NULL), WEFT_STATUS_BAD_PARAM_NOT_FINALIZED,
            "weftExecute: execution plan is not finalized. Call weftBackendFinalize on it first.");
    MUST(weftExecute(plan, 2, pointers, NULL, NULL));
    MUST(weftDestroy(handle));
    drop(graph), drop(plan), drop(open), drop(pack);
}

/* ---- Queries ----------------------------------------------------------------------------------------------------- */

static void test_query_support(void) {
    desc graph = relu_graph(), open = make(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    desc device = make(WEFT_BACKEND_DEVICEPROP_DESCRIPTOR);
    char text[4096] = "untouched", cut[8];
    size_t size = 0, again = 0;
    REFUSED(weftQuerySupport(NULL, NULL, text, sizeof text, &size), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftQuerySupport: the descriptor is NULL. Create one with weftBackendCreateDescriptor.");
    REFUSED(weftQuerySupport(open, NULL, text, sizeof text, &size), WEFT_STATUS_BAD_PARAM_NOT_FINALIZED,
            "weftQuerySupport: graph is not finalized. Call weftBackendFinalize on it first.");
    REFUSED(weftQuerySupport(device, NULL, text, sizeof text, &size), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "weftQuerySupport: expected a descriptor of kind graph, got device properties. Pass one of that kind.");
    REFUSED(weftQuerySupport(graph, graph, text, sizeof text, &size), WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "weftQuerySupport: expected a descriptor of kind device properties, got graph 'sixteen letters!'. Pass one "
            "of that kind.");
    REFUSED(weftQuerySupport(graph, device, text, sizeof text, &size), WEFT_STATUS_BAD_PARAM_NOT_FINALIZED,
            "weftQuerySupport: device properties is not finalized. Call weftBackendFinalize on it first.");
    REFUSED(weftQuerySupport(graph, NULL, NULL, 8, &size), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftQuerySupport: text is NULL, capacity is 8. Give an array, or capacity 0.");
    CHECK(!strcmp(text, "untouched"), "refusals write nothing");
    MUST(weftQuerySupport(graph, NULL, NULL, 0, &size));
    MUST(weftQuerySupport(graph, NULL, text, sizeof text, &again));
    CHECK(size == again && size == strlen(text) + 1, "sizes %zu and %zu", size, again);
    CHECK(strstr(text, "\"engine\":\"cpu.reference\",\"supported\":true"), "%s", text);
    MUST(weftQuerySupport(graph, NULL, cut, sizeof cut, NULL));
    CHECK(strlen(cut) == 7 && !strncmp(cut, text, 7), "cut to '%s'", cut);
    MUST(weftBackendFinalize(device));
    MUST(weftQuerySupport(graph, device, text, sizeof text, NULL));
    CHECK(strstr(text, "\"supported\":true"), "%s", text);
    drop(graph), drop(open), drop(device);
}

static void test_describe(void) {
    size_t size = 0;
    char cut[8];
    REFUSED(weftDescribe(NULL, 8, &size), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftDescribe: text is NULL, capacity is 8. Give an array, or capacity 0.");
    MUST(weftDescribe(NULL, 0, NULL));
    MUST(weftDescribe(NULL, 0, &size));
    char *text = malloc(size);
    MUST(weftDescribe(text, size, NULL));
    CHECK(strlen(text) + 1 == size, "size %zu", size);
    MUST(weftDescribe(cut, sizeof cut, &size));
    CHECK(strlen(cut) == 7 && !strncmp(cut, text, 7), "cut to '%s'", cut);
    free(text);
}

/* ---- Logging ----------------------------------------------------------------------------------------------------- */

struct heard {
    int count;
    weftSeverity_t severity;
    weftDebug_t debug;
    char message[4200];
};

static void listen(weftSeverity_t severity, void *udata, const weftDebug_t *debug, const char *message) {
    struct heard *heard = udata;
    heard->count++;
    heard->severity = severity;
    heard->debug = *debug;
    snprintf(heard->message, sizeof heard->message, "%s", message);
}

static void test_log(void) {
    struct heard heard = {0};
    uint32_t mask = 0;
    void *udata = NULL;
    weftCallback_t fn = NULL;
    MUST(weftSetCallback(1u << WEFT_SEV_ERROR, &heard, listen));
    MUST(weftGetCallback(&mask, &udata, &fn));
    CHECK(mask == 1u << WEFT_SEV_ERROR && udata == &heard && fn == listen, "what was set");
    MUST(weftGetCallback(NULL, NULL, NULL));

    desc t = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    CHECK(heard.count == 0, "success is silent");
    CHECK(weftBackendFinalize(t) != WEFT_STATUS_SUCCESS, "a tensor without uid");
    CHECK(heard.count == 1 && heard.severity == WEFT_SEV_ERROR, "%d messages", heard.count);
    CHECK(heard.debug.weft_version == weftGetVersion() && heard.debug.pid && heard.debug.tid && heard.debug.time_sec,
          "debug is filled in");
    char expected[4200];
    snprintf(expected, sizeof expected, "WEFT_STATUS_BAD_PARAM: %s", last_error());
    CHECK(!strcmp(heard.message, expected), "'%s'", heard.message);
    MUST(weftSetCallback(0xF & ~(1u << WEFT_SEV_ERROR), &heard, listen));
    CHECK(weftBackendFinalize(t) != WEFT_STATUS_SUCCESS && heard.count == 1, "errors are masked out");
    MUST(weftSetCallback(0, NULL, NULL));
    MUST(weftGetCallback(&mask, &udata, &fn));
    CHECK(mask == 0 && !udata && !fn, "silenced");
    CHECK(weftBackendFinalize(t) != WEFT_STATUS_SUCCESS && heard.count == 1, "silence");
    drop(t);
}

int main(void) {
    RUN(test_version_and_names());
    RUN(test_last_error());
    RUN(test_handles());
    RUN(test_life());
    RUN(test_set());
    RUN(test_set_descriptors());
    RUN(test_conversions());
    RUN(test_get());
    RUN(test_get_descriptors());
    RUN(test_destruction_orders());
    RUN(test_every_row());
    RUN(test_execute());
    RUN(test_query_support());
    RUN(test_describe());
    RUN(test_log());
    return harness_end();
}
