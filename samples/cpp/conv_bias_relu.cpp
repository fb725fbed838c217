/* SPDX-License-Identifier: Apache-2.0 */
/* y = relu(conv(x, w) + b): first step by step with the names of cuDNN's C++ frontend and a check of every error, then
   in the short form. Both are compared with sums in double. */
#include <cmath>
#include <iostream>
#include <weft/weft.hpp>

namespace fe = weft::frontend;

constexpr int C = 4, K = 8, H = 8, OUT = 6;

static std::vector<float> image(C * H * H), filters(K * C * 9), bias(K), result(K * OUT * OUT);

static double expected(int k, int row, int column) {
    double sum = bias[k];
    for (int c = 0; c < C; c++)
        for (int tap = 0; tap < 9; tap++)
            sum += double(image[(c * H + row + tap / 3) * H + column + tap % 3]) * filters[(k * C + c) * 9 + tap];
    return sum > 0 ? sum : 0;
}

/** By default, the result of a convolution is stored with channels last, as in cuDNN's frontend. */
static double largest_error() {
    double worst = 0;
    for (int i = 0; i < K * OUT * OUT; i++)
        worst = std::fmax(worst, std::fabs(result[i] - expected(i % K, i / K / OUT, i / K % OUT)));
    return worst;
}

/** The form of a program for cuDNN. */
static fe::error_t step_by_step(weftHandle_t handle) {
    fe::graph::Graph graph;
    graph.set_io_data_type(fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
    auto x = graph.tensor(fe::graph::Tensor_attributes().set_name("x").set_dim({1, C, H, H}));
    auto w = graph.tensor(fe::graph::Tensor_attributes().set_name("w").set_dim({K, C, 3, 3}));
    auto b = graph.tensor(fe::graph::Tensor_attributes().set_name("b").set_dim({1, K, 1, 1}));
    auto options = fe::graph::Conv_fprop_attributes().set_padding({0, 0}).set_stride({1, 1}).set_dilation({1, 1});
    auto conv = graph.conv_fprop(x, w, options);
    auto add = fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD);
    auto relu = fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::RELU_FWD);
    auto y = graph.pointwise(graph.pointwise(conv, b, add), relu);
    y->set_output(true);

    fe::error_t error = graph.validate();
    if (error.is_good())
        error = graph.build_operation_graph(handle);
    if (error.is_good())
        error = graph.create_execution_plans({fe::HeurMode_t::A});
    if (error.is_good())
        error = graph.check_support(handle);
    if (error.is_good())
        error = graph.build_plans(handle);
    if (error.is_bad())
        return error;
    std::vector<char> workspace(static_cast<std::size_t>(graph.get_workspace_size()));
    std::unordered_map<std::shared_ptr<fe::graph::Tensor_attributes>, void *> memory = {
        {x, image.data()}, {w, filters.data()}, {b, bias.data()}, {y, result.data()}};
    return graph.execute(handle, memory, workspace.data());
}

/** The short form: shapes are inferred, unread results are outputs, errors are thrown. */
static void short_way(weftHandle_t handle) {
    weft::Graph g(weft::DataType_t::FLOAT);
    auto x = g.tensor({1, C, H, H}), w = g.tensor({K, C, 3, 3}), b = g.tensor({1, K, 1, 1});
    auto y = g.relu(g.bias(g.conv_fprop(x, w), b));
    g.build(handle).or_throw();
    g.execute({{x, image.data()}, {w, filters.data()}, {b, bias.data()}, {y, result.data()}}).or_throw();
}

int main() try {
    for (std::size_t i = 0; i < image.size(); i++)
        image[i] = static_cast<float>(i % 7) - 3;
    for (std::size_t i = 0; i < filters.size(); i++)
        filters[i] = static_cast<float>(i % 5) - 2, bias[i % K] = static_cast<float>(i % K);
    weft::Handle cpu(WEFT_DEVICE_CPU); /* the device of the arrays */
    step_by_step(cpu).or_throw();
    double first = largest_error();
    short_way(cpu);
    std::cout << "largest errors: " << first << ", " << largest_error() << '\n';
    return first < 1e-4 && largest_error() < 1e-4 ? 0 : 1;
} catch (const weft::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
