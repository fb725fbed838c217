/* SPDX-License-Identifier: Apache-2.0 */
/* y = relu(conv(x, w) + b) from C++: descriptors released by their owners, failures as exceptions. */
#include "weft/weft.h"
#include <cstdint>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <vector>

static void check(weftStatus_t status) {
    char why[1000];
    weftGetLastErrorString(why, sizeof why);
    if (status)
        throw std::runtime_error(why);
}

struct Descriptor {
    explicit Descriptor(weftBackendDescriptorType_t kind) {
        weftBackendDescriptor_t made;
        check(weftBackendCreateDescriptor(kind, &made));
        held.reset(made, weftBackendDestroyDescriptor);
    }
    template <class T>
    Descriptor &set(weftBackendAttributeName_t name, weftBackendAttributeType_t type, const std::vector<T> &values) {
        check(weftBackendSetAttribute(held.get(), name, type, static_cast<std::int64_t>(values.size()), values.data()));
        return *this;
    }
    Descriptor &link(weftBackendAttributeName_t name, std::initializer_list<Descriptor> others) {
        std::vector<weftBackendDescriptor_t> values;
        for (const Descriptor &other : others)
            values.push_back(other.held.get());
        return set(name, WEFT_TYPE_BACKEND_DESCRIPTOR, values);
    }
    Descriptor &finalize() {
        check(weftBackendFinalize(held.get()));
        return *this;
    }
    std::shared_ptr<struct weftDescriptor> held;
};

/* A float tensor [N, C, H, W]. Without dims it only passes between operations, which infer them. */
static Descriptor tensor(std::int64_t uid, const std::vector<std::int64_t> &dims = {}) {
    Descriptor made(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    made.set<std::int64_t>(WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT64, {uid})
        .set<weftDataType_t>(WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, {WEFT_DATA_FLOAT})
        .set<std::int64_t>(WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, WEFT_TYPE_INT64, {sizeof(float)})
        .set<char>(WEFT_ATTR_TENSOR_IS_VIRTUAL, WEFT_TYPE_BOOLEAN, {dims.empty()});
    if (!dims.empty())
        made.set(WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, dims);
    return made.finalize();
}

/* A pointwise operation on x, with the attributes of its other operands still to come. */
static Descriptor pointwise(weftPointwiseMode_t mode, const Descriptor &x, const Descriptor &y) {
    Descriptor how(WEFT_BACKEND_POINTWISE_DESCRIPTOR), made(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    how.set<weftPointwiseMode_t>(WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, {mode}).finalize();
    return made.link(WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {how})
        .link(WEFT_ATTR_OPERATION_POINTWISE_XDESC, {x})
        .link(WEFT_ATTR_OPERATION_POINTWISE_YDESC, {y});
}

int main() try {
    Descriptor x = tensor(1, {1, 1, 4, 4}), w = tensor(2, {1, 1, 3, 3}), b = tensor(3, {1, 1, 1, 1});
    Descriptor y = tensor(4, {1, 1, 2, 2}), sum = tensor(5), biased = tensor(6);
    Descriptor how(WEFT_BACKEND_CONVOLUTION_DESCRIPTOR), conv(WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    conv.link(WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, {how.finalize()})
        .link(WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X, {x})
        .link(WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W, {w})
        .link(WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, {sum})
        .finalize();
    Descriptor add = pointwise(WEFT_POINTWISE_ADD, sum, biased).link(WEFT_ATTR_OPERATION_POINTWISE_BDESC, {b});
    Descriptor relu = pointwise(WEFT_POINTWISE_RELU_FWD, biased, y);

    Descriptor graph(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR), heuristics(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR);
    graph.link(WEFT_ATTR_OPERATIONGRAPH_OPS, {conv, add.finalize(), relu.finalize()}).finalize();
    heuristics.link(WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, {graph})
        .set<weftBackendHeurMode_t>(WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, {WEFT_HEUR_MODE_A})
        .finalize();
    Descriptor config(WEFT_BACKEND_ENGINECFG_DESCRIPTOR), plan(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    weftBackendDescriptor_t best = config.held.get();
    check(weftBackendGetAttribute(heuristics.held.get(), WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, 1,
                                  nullptr, &best));
    plan.link(WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {config}).finalize();

    std::int64_t bytes = 0;
    check(weftBackendGetAttribute(plan.held.get(), WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, WEFT_TYPE_INT64, 1, nullptr,
                                  &bytes));
    std::vector<char> memory(static_cast<std::size_t>(bytes) + 64);
    char *workspace = memory.data() + 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    std::vector<float> image(16), filter(9, 1.0f), bias(1, -60.0f), result(4);
    for (std::size_t i = 0; i < image.size(); i++)
        image[i] = static_cast<float>(i);
    /* One address per tensor that is not virtual, in the order of the uids. */
    std::vector<std::uint64_t> slots;
    for (float *address : {image.data(), filter.data(), bias.data(), result.data()})
        slots.push_back(reinterpret_cast<std::uintptr_t>(address));
    check(weftExecute(plan.held.get(), 4, slots.data(), workspace, nullptr));
    std::cout << result[0] << ' ' << result[1] << '\n' << result[2] << ' ' << result[3] << '\n';
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
