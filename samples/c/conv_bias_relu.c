/* SPDX-License-Identifier: Apache-2.0 */
/* y = relu(conv(x, w) + b): describes three operations, plans them as one graph, and runs it on the CPU. */
#include "weft/weft.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef weftBackendDescriptor_t desc;
static const weftBackendAttributeType_t INT64 = WEFT_TYPE_INT64, DESC = WEFT_TYPE_BACKEND_DESCRIPTOR;
enum { END = -1 };

static void ok(weftStatus_t status) {
    char why[1000];
    weftGetLastErrorString(why, sizeof why);
    if (status)
        exit(fprintf(stderr, "%s\n", why));
}

/* Creates and finalizes a descriptor. The remaining arguments are its attributes: name, type, count, address. */
static desc make(weftBackendDescriptorType_t kind, ...) {
    desc made;
    va_list list;
    ok(weftBackendCreateDescriptor(kind, &made));
    va_start(list, kind);
    for (int name = va_arg(list, int); name != END; name = va_arg(list, int)) {
        int type = va_arg(list, int), count = va_arg(list, int);
        ok(weftBackendSetAttribute(made, name, type, count, va_arg(list, void *)));
    }
    va_end(list);
    ok(weftBackendFinalize(made));
    return made;
}

/* A tensor [N, C, H, W]. Without dims it is an intermediate, whose dims are inferred. */
static desc tensor(int64_t uid, int64_t *dims) {
    weftDataType_t type = WEFT_DATA_FLOAT;
    int64_t alignment = sizeof(float); /* of the addresses at execution; by default 16 bytes */
    char is_virtual = !dims;
    return make(WEFT_BACKEND_TENSOR_DESCRIPTOR, WEFT_ATTR_TENSOR_UNIQUE_ID, INT64, 1, &uid, WEFT_ATTR_TENSOR_DATA_TYPE,
                WEFT_TYPE_DATA_TYPE, 1, &type, WEFT_ATTR_TENSOR_IS_VIRTUAL, WEFT_TYPE_BOOLEAN, 1, &is_virtual,
                WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, INT64, 1, &alignment, dims ? WEFT_ATTR_TENSOR_DIMENSIONS : END, INT64,
                4, dims, END);
}

int main(void) {
    desc x = tensor(1, (int64_t[]){1, 1, 4, 4}), w = tensor(2, (int64_t[]){1, 1, 3, 3}), sum = tensor(5, NULL);
    desc b = tensor(3, (int64_t[]){1, 1, 1, 1}), y = tensor(4, (int64_t[]){1, 1, 2, 2}), biased = tensor(6, NULL);
    weftPointwiseMode_t add = WEFT_POINTWISE_ADD, relu = WEFT_POINTWISE_RELU_FWD;
    desc how[] = {
        make(WEFT_BACKEND_CONVOLUTION_DESCRIPTOR, END),
        make(WEFT_BACKEND_POINTWISE_DESCRIPTOR, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, &add, END),
        make(WEFT_BACKEND_POINTWISE_DESCRIPTOR, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, &relu, END)};
    desc ops[] = {
        make(WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
             DESC, 1, &how[0], WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X, DESC, 1, &x,
             WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W, DESC, 1, &w, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, DESC, 1,
             &sum, END),
        make(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, DESC, 1, &how[1],
             WEFT_ATTR_OPERATION_POINTWISE_XDESC, DESC, 1, &sum, WEFT_ATTR_OPERATION_POINTWISE_BDESC, DESC, 1, &b,
             WEFT_ATTR_OPERATION_POINTWISE_YDESC, DESC, 1, &biased, END),
        make(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, DESC, 1, &how[2],
             WEFT_ATTR_OPERATION_POINTWISE_XDESC, DESC, 1, &biased, WEFT_ATTR_OPERATION_POINTWISE_YDESC, DESC, 1, &y,
             END),
    };
    weftHandle_t handle;
    weftBackendHeurMode_t mode = WEFT_HEUR_MODE_A;
    ok(weftCreateForDevice(&handle, WEFT_DEVICE_CPU, 0));
    desc graph = make(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR, WEFT_ATTR_OPERATIONGRAPH_OPS, DESC, 3, ops, END);
    desc best = make(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, DESC, 1, &graph,
                     WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, 1, &mode, END);
    desc config;
    ok(weftBackendCreateDescriptor(WEFT_BACKEND_ENGINECFG_DESCRIPTOR, &config));
    ok(weftBackendGetAttribute(best, WEFT_ATTR_ENGINEHEUR_RESULTS, DESC, 1, NULL, &config));
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1,
                     &handle, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, DESC, 1, &config, END);

    float image[16], ones[9], bias = -60, result[4];
    for (int i = 0; i < 16; i++)
        image[i] = i;
    for (int i = 0; i < 9; i++)
        ones[i] = 1;
    int64_t bytes;
    ok(weftBackendGetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, INT64, 1, NULL, &bytes));
    char *memory = malloc(bytes + 64), *workspace = memory + 64 - (uintptr_t)memory % 64;
    void *pointers[] = {image, ones, &bias, result};
    desc pack = make(WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR, WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, INT64, 4,
                     (int64_t[]){1, 2, 3, 4}, WEFT_ATTR_VARIANT_PACK_DATA_POINTERS, WEFT_TYPE_VOID_PTR, 4, pointers,
                     WEFT_ATTR_VARIANT_PACK_WORKSPACE, WEFT_TYPE_VOID_PTR, 1, &workspace, END);
    ok(weftBackendExecute(handle, plan, pack));
    printf("%g %g\n%g %g\n", result[0], result[1], result[2], result[3]);
    free(memory);
    return 0; /* the process exits; others call weftBackendDestroyDescriptor and weftDestroy */
}
