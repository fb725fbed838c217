/* SPDX-License-Identifier: Apache-2.0 */
/* y = relu(conv(x, w) + b) in C11, with the numbers of README's Python program. The parameters of an operation can be
   set on the operation itself, like the mode here, or on a separate descriptor, like in cuDNN and conv_bias_relu.c. A
   plan uses the fastest engine unless one is set. */
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

typedef weftBackendDescriptor_t desc;
#define HELD(name, d)                                                                                                  \
    {                                                                                                                  \
        name, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &(desc) { d }                                                           \
    }
#define BUILD(kind, ...) build(kind, sizeof (weftAttribute_t[]){__VA_ARGS__}, (weftAttribute_t[]){__VA_ARGS__})

static desc build(weftBackendDescriptorType_t kind, size_t bytes, const weftAttribute_t *attributes) {
    desc made;
    char why[1000];
    if (weftBackendBuildDescriptor(kind, bytes / sizeof *attributes, attributes, &made))
        weftGetLastErrorString(why, sizeof why), puts(why), exit(1);
    return made;
}
static desc tensor(int64_t uid, const int64_t *dims, char is_virtual) { /* without dims, they are inferred */
    return BUILD(WEFT_BACKEND_TENSOR_DESCRIPTOR, {WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT64, 1, &uid},
                 {WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, 1, &(int){WEFT_DATA_FLOAT}},
                 {WEFT_ATTR_TENSOR_IS_VIRTUAL, WEFT_TYPE_BOOLEAN, 1, &is_virtual},
                 {WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, dims ? 4 : 0, dims});
}

int main(void) {
    desc x = tensor(1, (int64_t[]){1, 16, 32, 32}, 0), w = tensor(2, (int64_t[]){16, 16, 3, 3}, 0);
    desc b = tensor(3, (int64_t[]){1, 16, 1, 1}, 0), product = tensor(4, NULL, 1), sum = tensor(5, NULL, 1);
    desc y = tensor(6, NULL, 0);
    desc operations[] = {
        BUILD(WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, HELD(WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x),
              HELD(WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w),
              HELD(WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, product)),
        BUILD(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, HELD(WEFT_ATTR_OPERATION_POINTWISE_XDESC, product),
              {WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, &(int){WEFT_POINTWISE_ADD}},
              HELD(WEFT_ATTR_OPERATION_POINTWISE_BDESC, b), HELD(WEFT_ATTR_OPERATION_POINTWISE_YDESC, sum)),
        BUILD(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, HELD(WEFT_ATTR_OPERATION_POINTWISE_XDESC, sum),
              {WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, &(int){WEFT_POINTWISE_RELU_FWD}},
              HELD(WEFT_ATTR_OPERATION_POINTWISE_YDESC, y))};
    weftHandle_t cpu; /* the device of the arrays below */
    weftCreateForDevice(&cpu, WEFT_DEVICE_CPU, 0);
    desc graph =
        BUILD(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR, {WEFT_ATTR_OPERATIONGRAPH_HANDLE, WEFT_TYPE_HANDLE, 1, &cpu},
              {WEFT_ATTR_OPERATIONGRAPH_OPS, WEFT_TYPE_BACKEND_DESCRIPTOR, 3, operations});
    desc plan =
        BUILD(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, HELD(WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT, graph));

    int64_t bytes;
    weftBackendGetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, WEFT_TYPE_INT64, 1, NULL, &bytes);
    void *workspace = aligned_alloc(64, (bytes / 64 + 1) * 64);
    static alignas(16) float image[16 * 32 * 32], filters[16 * 16 * 3 * 3], bias[16], result[16 * 30 * 30];
    for (int i = 0; i < 16 * 32 * 32; i++)
        image[i] = i % 7;
    for (int i = 0; i < 16 * 16 * 3 * 3; i++)
        filters[i] = 1, bias[i % 16] = -432;
    uint64_t memory[] = {(uint64_t)image, (uint64_t)filters, (uint64_t)bias, (uint64_t)result}; /* by ascending uid */
    if (weftExecute(plan, 4, memory, workspace, NULL))
        return 1;
    printf("%.1f %.1f %.1f %.1f %.1f %.1f\n", result[0], result[1], result[2], result[3], result[4], result[5]);
    return 0;
}
