/* SPDX-License-Identifier: Apache-2.0 */
/* A program for cuDNN's C++ frontend, compiled unchanged and compared with sums in double. */
#include <cudnn.h>
#include <cudnn_frontend.h>
#include <cudnn_frontend_utils.h>

#include "expect.hpp"

#include <sstream>

namespace fe = cudnn_frontend;
using Dims = std::vector<std::int64_t>;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pack = std::unordered_map<Tensor, void *>;

#if CUDNN_VERSION < 91100 || CUDNN_FRONTEND_VERSION < 11300
#error "Gates on versions take the oldest path."
#endif

static cudnnHandle_t cpu() {
    static weft::Handle handle(WEFT_DEVICE_CPU);
    return handle;
}

static fe::graph::Tensor_attributes described(const Dims &dims, Dims strides = {}) {
    return fe::graph::Tensor_attributes().set_dim(dims).set_stride(strides);
}

static fe::graph::Graph floats() {
    fe::graph::Graph graph;
    graph.set_io_data_type(fe::DataType_t::FLOAT).set_intermediate_data_type(fe::DataType_t::FLOAT);
    graph.set_compute_data_type(fe::DataType_t::FLOAT);
    return graph;
}

static void run(fe::graph::Graph &graph, Pack pack) {
    GOOD(graph.build(cpu(), {fe::HeurMode_t::A}));
    std::int64_t bytes = 0;
    GOOD(graph.get_workspace_size(bytes));
    std::vector<char> workspace(static_cast<std::size_t>(bytes));
    GOOD(graph.execute(cpu(), pack, workspace.data()));
}

static void versions_and_handles() {
    HOLDS(cudnnGetVersion() == CUDNN_VERSION && cudnnGetVersion() >= 90500 && cudnnGetCudartVersion() >= 12000);
    HOLDS(fe::detail::get_backend_version() == cudnnGetVersion());
    HOLDS(fe::detail::get_compiled_version() == CUDNN_VERSION && fe::detail::get_backend_version_string() == "9.28.0");
    HOLDS(fe::detail::get_element_size_in_bits(fe::DataType_t::INT4) == 4);
    HOLDS(fe::detail::get_data_type_size(fe::DataType_t::HALF) == 2);
    cudnnHandle_t handle = nullptr;
    CUstream_st *stream = nullptr;
    HOLDS(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
    HOLDS(cudnnSetStream(handle, stream) == CUDNN_STATUS_SUCCESS);
    HOLDS(cudnnGetStream(handle, &stream) == CUDNN_STATUS_SUCCESS && !stream);
    HOLDS(std::string(cudnnGetErrorString(CUDNN_STATUS_BAD_PARAM)).find("BAD_PARAM") != std::string::npos);
    HOLDS(cudnnDestroy(handle) == CUDNN_STATUS_SUCCESS);
}

/* ---- Tensors ---- */

#if !__has_include(<cuda_fp16.h>)
struct __half {
    std::uint16_t bits;
};
#endif

static void scalars() {
    using fe::graph::ScalarType;
    fe::graph::Graph graph = floats();
    auto x = graph.tensor(described({2, 2}));
    auto scale = graph.tensor(2.5f, ScalarType::COMPILE_TIME_CONST);
    auto shift = graph.tensor(10.0f, ScalarType::RUNTIME_PARAM);
    auto later = graph.tensor(fe::graph::Tensor_attributes(1.0f).set_as_runtime_parameter().set_name("later"));
    HOLDS(scale->get_has_compile_time_constant() && !shift->get_has_compile_time_constant());
    HOLDS(std::get<float>(*scale->get_compile_time_constant()) == 2.5f && !scale->get_pass_by_value());
    HOLDS(std::get<float>(*shift->get_pass_by_value()) == 10.0f && !shift->get_compile_time_constant());
    HOLDS(shift->get_is_pass_by_value() && later->get_is_pass_by_value() && !later->get_pass_by_value());
    auto y = graph.mul(graph.add(graph.mul(x, scale), shift), later);
    y->set_output(true);
    std::vector<float> in = {1, 2, 3, 4}, out(4);
    float one = 1, factor = 2;
    run(graph, {{x, in.data()}, {later, &factor}, {y, out.data()}});
    NEAR(out, (std::vector<double>{25, 30, 35, 40}));
    GOOD(graph.execute({{x, in.data()}, {shift, &one}, {later, &factor}, {y, out.data()}}));
    NEAR(out, (std::vector<double>{7, 12, 17, 22}));
    FAILS(graph.execute({{x, in.data()}, {y, out.data()}}), INVALID_VARIANT_PACK,
          "graph: execute: tensor 'later' (uid 6) has no memory: every input and output needs an address. Add it to "
          "the variant pack.");
    std::string text;
    GOOD(graph.serialize(text));
    fe::graph::Graph read;
    GOOD(read.deserialize(text));
    GOOD(read.build(cpu(), {fe::HeurMode_t::A}));
    GOOD(read.execute({{x->get_uid(), in.data()}, {later->get_uid(), &factor}, {y->get_uid(), out.data()}}));
    NEAR(out, (std::vector<double>{25, 30, 35, 40}));
    fe::graph::Tensor_attributes::pass_by_values_t value = std::int32_t{7};
    fe::graph::Tensor_attributes seven;
    seven.set_compile_time_constant(value);
    HOLDS(seven.get_data_type() == fe::DataType_t::INT32 && *seven.get_compile_time_constant() == value);
#if !__has_include(<cuda_fp16.h>)
    fe::graph::Tensor_attributes half(__half{0xc100});
    HOLDS(half.get_data_type() == fe::DataType_t::HALF && std::get<float>(*half.get_compile_time_constant()) == -2.5f);
    fe::graph::Tensor_attributes small(__half{0x0001});
    HOLDS(std::get<float>(*small.get_compile_time_constant()) == std::ldexp(1.0f, -24));
#endif
}

static void tensors_tell_what_was_set() {
    auto offset = std::make_shared<fe::graph::Tensor_attributes>();
    auto t = fe::graph::Tensor_attributes().set_uid(3).set_vector_count_and_dimension(4, 1).set_ragged_offset(offset);
    HOLDS(t.get_vector_count() == 4 && t.get_vector_dimension() == 1 && t.get_ragged_offset() == offset);
    HOLDS(!t.has_ragged_offset_multiplier() && t.get_ragged_offset_multiplier() == 1);
    HOLDS(t.set_ragged_offset_multiplier(8).has_ragged_offset_multiplier() && t.get_ragged_offset_multiplier() == 8);
    HOLDS(t.has_uid() && !t.clear_uid().has_uid());
    HOLDS(t.get_alignment() == fe::graph::Tensor_attributes::default_alignment);
}

static void attributes_tell_what_was_set() {
    namespace g = fe::graph;
    const auto conv = g::Conv_fprop_attributes().set_padding({1, 2}).set_stride({3, 4}).set_dilation({5, 6});
    HOLDS((conv.get_pre_padding() == Dims{1, 2}) && (conv.get_post_padding() == Dims{1, 2}));
    HOLDS((conv.get_stride() == Dims{3, 4}) && (conv.get_dilation() == Dims{5, 6}));
    HOLDS(conv.get_convolution_mode() == fe::ConvolutionMode_t::CROSS_CORRELATION);
    HOLDS(g::Conv_dgrad_attributes().set_convolution_mode(fe::ConvolutionMode_t::CONVOLUTION).get_convolution_mode() ==
          fe::ConvolutionMode_t::CONVOLUTION);
    const auto pointwise = g::Pointwise_attributes().set_mode(fe::PointwiseMode_t::SWISH_FWD).set_swish_beta(0.5f);
    HOLDS(pointwise.get_mode() == fe::PointwiseMode_t::SWISH_FWD && pointwise.get_swish_beta() == 0.5);
    HOLDS(!pointwise.get_axis() && g::Pointwise_attributes().set_axis(2).get_axis() == 2);
    HOLDS(g::Pointwise_attributes().get_mode() == fe::PointwiseMode_t::NOT_SET);
    const auto reduction = g::Reduction_attributes().set_mode(fe::ReductionMode_t::MAX).set_is_deterministic(true);
    HOLDS(reduction.get_mode() == fe::ReductionMode_t::MAX && reduction.get_is_deterministic());
    HOLDS(!g::Reduction_attributes().get_mode() && !g::Reduction_attributes().get_is_deterministic());
    const auto rng = g::Rng_attributes().set_distribution(fe::RngDistribution_t::BERNOULLI).set_dim({2, 3});
    HOLDS(rng.get_distribution() == fe::RngDistribution_t::BERNOULLI && (rng.get_dim() == Dims{2, 3}));
    HOLDS(!rng.get_seed() && g::Rng_attributes().set_bernoulli_probability(0.25).get_bernoulli_probability() == 0.25);
    HOLDS(g::Reshape_attributes().get_reshape_mode() == fe::ReshapeMode_t::VIEW_ONLY);
    HOLDS((g::Reshape_attributes().set_stride({2, 1}).get_stride() == Dims{2, 1}));
    HOLDS((g::Transpose_attributes().set_permutation({1, 0}).set_name("t").get_permutation() == Dims{1, 0}));
    HOLDS(g::Transpose_attributes().set_name("t").get_name() == "t");
    HOLDS(g::Matmul_fp8_attributes().get_padding() == 0 && g::Matmul_attributes().set_padding(2.0).get_padding() == 2);
    HOLDS(g::Block_scale_dequantize_attributes().set_is_negative_scale(true).get_is_negative_scale());
    HOLDS(g::SDPA_attributes().set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT).get_diagonal_alignment() ==
          fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    HOLDS(g::DiagonalBandMask_attributes().get_comparison_mode() == fe::PointwiseMode_t::CMP_GT);
}

/** Compares elements of x with 0, with or without a preceding norm; the result is a mask of bits or of bytes. */
static void operations_decide_what_a_boolean_is() {
    for (bool is_bits : {false, true}) {
        fe::graph::Graph graph = floats();
        auto x = graph.tensor(described({4, 8, 1, 1})), scale = graph.tensor(described({1, 8, 1, 1}));
        auto bias = graph.tensor(described({1, 8, 1, 1})), epsilon = graph.tensor(1e-5f);
        Tensor source = x;
        if (is_bits) {
            auto options = fe::graph::Layernorm_attributes().set_forward_phase(fe::NormFwdPhase_t::INFERENCE);
            source = graph.layernorm(x, scale, bias, options.set_epsilon(epsilon))[0];
        }
        auto mask = graph.pointwise(source, graph.tensor(0.0f),
                                    fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::CMP_GT));
        mask->set_output(true).set_data_type(fe::DataType_t::BOOLEAN);
        std::vector<float> in(32), ones(8, 1.0f), zeros(8, 0.0f);
        for (std::size_t i = 0; i < 32; i++)
            in[i] = i % 3 ? 1.0f : -9.0f;
        std::vector<std::uint8_t> out(32, 0xee);
        Pack pack = {{x, in.data()}, {mask, out.data()}, {scale, ones.data()}, {bias, zeros.data()}};
        run(graph, pack);
        for (std::size_t i = 0; i < 32; i++)
            HOLDS((is_bits ? out[i / 8] >> (i % 8) & 1 : out[i]) == (in[i] > 0));
        HOLDS(out[31] == (is_bits ? 0xee : 1));
    }
}

/* ---- Operations ---- */

static void statistics_to_base_2() {
    fe::graph::Graph graph = floats();
    const Dims dims = {1, 1, 4, 8};
    auto q = graph.tensor(described(dims)), k = graph.tensor(described(dims)), v = graph.tensor(described(dims));
    auto options = fe::graph::SDPA_attributes().set_generate_stats(true);
    auto natural = graph.sdpa(q, k, v, options), base_2 = graph.sdpa(q, k, v, options.set_stats_use_log2(true));
    for (const Tensor &each : {natural[0], natural[1], base_2[0], base_2[1]})
        each->set_output(true);
    std::vector<float> a = expect::numbers(32, 1), b = expect::numbers(32, 2), c = expect::numbers(32, 3);
    std::vector<float> o(32), o2(32), stats(4), stats2(4);
    run(graph, {{q, a.data()},
                {k, b.data()},
                {v, c.data()},
                {natural[0], o.data()},
                {base_2[0], o2.data()},
                {natural[1], stats.data()},
                {base_2[1], stats2.data()}});
    HOLDS(base_2[1]->get_data_type() == fe::DataType_t::FLOAT && base_2[1]->get_dim() == natural[1]->get_dim());
    HOLDS(o == o2);
    for (std::size_t i = 0; i < 4; i++)
        HOLDS(std::fabs(double(stats2[i]) - double(stats[i]) / std::log(2.0)) < 1e-5);
    (void)fe::graph::Softmax_attributes().set_stats_use_log2(true);
}

static double reduced(fe::ReductionMode_t mode, const std::vector<float> &values) {
    double sum = 0, most = -INFINITY, least = INFINITY, squares = 0, product = 1;
    for (double value : values) {
        sum += mode == fe::ReductionMode_t::NORM1 ? std::fabs(value) : value;
        most = std::max(most, mode == fe::ReductionMode_t::AMAX ? std::fabs(value) : value);
        least = std::min(least, value), squares += value * value, product *= value;
    }
    switch (mode) {
    case fe::ReductionMode_t::MAX:
    case fe::ReductionMode_t::AMAX:
        return most;
    case fe::ReductionMode_t::MIN:
        return least;
    case fe::ReductionMode_t::MUL:
        return product;
    case fe::ReductionMode_t::NORM2:
        return std::sqrt(squares);
    case fe::ReductionMode_t::AVG:
        return sum / static_cast<double>(values.size());
    default:
        return sum;
    }
}

static void reductions_of_groups() {
    using Mode = fe::ReductionMode_t;
    for (Mode mode : {Mode::ADD, Mode::AVG, Mode::NORM1, Mode::NORM2, Mode::MAX, Mode::MIN, Mode::AMAX, Mode::MUL}) {
        fe::graph::Graph graph = floats();
        auto x = graph.tensor(described({1, 7, 3}));
        auto offset = graph.tensor(described({3, 1, 1}).set_data_type(fe::DataType_t::INT32));
        auto options = fe::graph::Reduction_attributes().set_mode(mode).set_group_offset(offset);
        auto y = graph.reduction(graph.neg(x), options);
        y->set_output(true).set_uid(1); /* inference did not assign this uid */
        std::vector<float> in = expect::numbers(21, 5), out(9);
        std::vector<std::int32_t> first = {0, 2, 3};
        run(graph, {{x, in.data()}, {offset, first.data()}, {y, out.data()}});
        HOLDS((y->get_dim() == Dims{3, 1, 3}));
        std::vector<double> expected;
        for (std::size_t e = 0; e < 3; e++)
            for (std::size_t column = 0; column < 3; column++) {
                std::vector<float> values;
                for (auto row = static_cast<std::size_t>(first[e]);
                     row < (e == 2 ? 7u : static_cast<std::size_t>(first[e + 1])); row++)
                    values.push_back(-in[row * 3 + column]);
                expected.push_back(reduced(mode, values));
            }
        NEAR(out, expected);
    }
    fe::graph::Graph graph = floats();
    auto x = graph.tensor(described({7, 3}));
    auto offset = graph.tensor(described({3, 1, 1}).set_data_type(fe::DataType_t::INT32));
    graph.reduction(x, fe::graph::Reduction_attributes().set_mode(Mode::ADD).set_group_offset(offset).set_name("sum"));
    FAILS(graph.validate(), INVALID_VALUE,
          "graph: reduction 'sum': with set_group_offset() its input is [1, M, N] and the offsets [E, 1, 1]; they are "
          "[7, 3] and [3, 1, 1]. Reshape them.");
}

static void quantizing_of_groups() {
    auto make = [](std::int64_t axis, bool has_tiles) {
        fe::graph::Graph graph = floats();
        auto x = graph.tensor(described({1, 128, 128}));
        auto offset = graph.tensor(described({2, 1, 1}).set_data_type(fe::DataType_t::INT32));
        auto options = fe::graph::Block_scale_quantize_attributes().set_block_size(32).set_axis(axis).set_name("q");
        auto [y, scale] = graph.block_scale_quantize(x, options.set_group_offset(offset));
        y->set_output(true).set_data_type(fe::DataType_t::FP8_E4M3);
        scale->set_output(true).set_data_type(fe::DataType_t::FP8_E8M0);
        if (has_tiles)
            scale->set_reordering_type(fe::TensorReordering_t::F8_128x4);
        return graph.validate();
    };
    GOOD(make(2, false));
    FAILS(make(1, false), INVALID_VALUE,
          "graph: block_scale_quantize 'q': set_group_offset() was called, and blocks along dimension 1 would cross "
          "groups of rows. Quantize along the last dimension, or each group by itself.");
    FAILS(
        make(2, true), GRAPH_NOT_SUPPORTED,
        "graph: block_scale_quantize 'q': set_group_offset() was called, and its scales have a reordering type, which "
        "Weft does not lay out for each group. Let scales lie in order, or quantize each group by itself.");
}

/** [B, H, S, D] or [S, B, H, D], with or without gaps between heads, rotated completely or in part. */
static void rotary_embedding() {
    const std::int64_t B = 2, H = 3, S = 4, D = 8, STEP = 10;
    for (bool is_front : {false, true})
        for (std::int64_t width : {std::int64_t{0}, std::int64_t{4}})
            for (double sign : {1.0, -1.0}) {
                fe::graph::Graph graph = floats();
                const Dims dims = is_front ? Dims{S, B, H, D} : Dims{B, H, S, D};
                const Dims strides = {dims[1] * dims[2] * STEP, dims[2] * STEP, STEP, 1};
                const std::int64_t K = width ? width : D;
                auto x = graph.tensor(described(dims, strides)), freqs = graph.tensor(described({S, 1, 1, K}));
                auto forward = fe::graph::RoPE_attributes().set_output_scale(0.5f).set_rope_dim(width);
                auto back = fe::graph::RoPE_backward_attributes().set_output_scale(0.5f).set_rope_dim(width);
                auto y = sign > 0 ? graph.rope(x, freqs, forward) : graph.rope_backward(x, freqs, back);
                y->set_output(true);
                const std::size_t count = static_cast<std::size_t>(B * H * S * STEP);
                std::vector<float> in = expect::numbers(count, 4), angles(static_cast<std::size_t>(S * K)),
                                   out(count, 0);
                for (std::size_t i = 0; i < angles.size(); i++)
                    angles[i] = 0.3f * static_cast<float>(i) - 2;
                run(graph, {{x, in.data()}, {freqs, angles.data()}, {y, out.data()}});
                HOLDS(y->get_stride() == strides);
                std::vector<double> expected(count, 0);
                for (std::int64_t row = 0; row < B * H * S; row++)
                    for (std::int64_t d = 0; d < D; d++) {
                        const std::int64_t s = is_front ? row / (B * H) : row % S, j = d - (D - K);
                        const auto at = static_cast<std::size_t>(row * STEP + d);
                        if (j < 0) {
                            expected[at] = 0.5 * in[at];
                            continue;
                        }
                        const bool is_second = j >= K / 2;
                        const double other =
                            in[is_second ? at - static_cast<std::size_t>(K / 2) : at + static_cast<std::size_t>(K / 2)];
                        const double angle = angles[static_cast<std::size_t>(s * K + j)];
                        expected[at] =
                            0.5 * (std::cos(angle) * in[at] + sign * std::sin(angle) * (is_second ? other : -other));
                    }
                NEAR(out, expected);
            }
    fe::graph::Graph graph = floats();
    auto x = graph.tensor(described({2, 3, 4, 8})), freqs = graph.tensor(described({5, 1, 1, 8}));
    graph.rope(x, freqs, fe::graph::RoPE_attributes().set_name("turn"));
    FAILS(graph.validate(), INVALID_VALUE,
          "graph: rope 'turn': freqs has 5 positions, and the input is [2, 3, 4, 8]. Give [B, H, S, D] or "
          "[S, B, H, D], and freqs [S, 1, 1, D].");
    fe::graph::Graph odd = floats();
    odd.rope(odd.tensor(described({2, 3, 4, 8})), odd.tensor(described({4, 1, 1, 3})),
             fe::graph::RoPE_attributes().set_rope_dim(3).set_name("turn"));
    FAILS(odd.validate(), INVALID_VALUE,
          "graph: rope 'turn': rope_dim is 3, and heads have 8 elements. Give an even number of them.");
}

/** Two adjacent sequences of 3 and 5 tokens; offsets count elements or tokens. */
static void offsets_count_tokens() {
    const std::int64_t H = 2, D = 8, TOKEN = H * D;
    std::vector<float> results[2];
    for (bool by_token : {false, true}) {
        fe::graph::Graph graph = floats();
        const Dims dims = {2, H, 5, D}, strides = {5 * TOKEN, D, TOKEN, 1};
        auto integers = [](const Dims &of) { return described(of).set_data_type(fe::DataType_t::INT32); };
        auto offset = graph.tensor(integers({3, 1, 1, 1})), length = graph.tensor(integers({2, 1, 1, 1}));
        auto ragged = described(dims, strides).set_ragged_offset(offset);
        ragged.set_ragged_offset_multiplier(by_token ? TOKEN : 1);
        auto q = graph.tensor(ragged), k = graph.tensor(ragged), v = graph.tensor(ragged);
        auto options = fe::graph::SDPA_attributes().set_padding_mask(true).set_seq_len_q(length).set_seq_len_kv(length);
        auto o = graph.sdpa(q, k, v, options)[0];
        o->set_output(true).set_dim(dims).set_stride(strides).set_ragged_offset(offset);
        o->set_ragged_offset_multiplier(by_token ? TOKEN : 1);
        std::string text;
        GOOD(graph.serialize(text));
        HOLDS((text.find("\"ragged_offset_multiplier\": 16") != std::string::npos) == by_token);
        const std::size_t count = static_cast<std::size_t>(8 * TOKEN);
        std::vector<float> a = expect::numbers(count, 1), b = expect::numbers(count, 2), c = expect::numbers(count, 3);
        std::int32_t unit = by_token ? 1 : static_cast<std::int32_t>(TOKEN);
        std::vector<std::int32_t> first = {0, 3 * unit, 8 * unit}, lengths = {3, 5};
        std::vector<float> &out = results[by_token];
        out.assign(count, NAN);
        run(graph, {{q, a.data()},
                    {k, b.data()},
                    {v, c.data()},
                    {offset, first.data()},
                    {length, lengths.data()},
                    {o, out.data()}});
    }
    for (float value : results[0])
        HOLDS(std::isfinite(value));
    HOLDS(results[0] == results[1]);
}

static void operations_that_are_refused() {
    fe::graph::Graph graph = floats();
    auto x = graph.tensor(described({2, 8, 4, 4})), s = graph.tensor(described({1, 8, 1, 1}));
    auto epsilon = graph.tensor(1e-5f);
    auto peer = graph.tensor(described({2, 32, 1, 1})), other = graph.tensor(described({2, 32, 1, 1}));
    graph.batchnorm(
        x, s, s, fe::graph::Batchnorm_attributes().set_epsilon(epsilon).set_peer_stats({peer, other}).set_name("bn"));
    HOLDS(graph.validate().get_message().find(
              "'bn': peer_stats lists 2 buffers, but a norm computes its statistics on one device.") !=
          std::string::npos);
}

/* ---- Score modifiers ---- */

namespace modifiers = fe::graph::attn::score_modifiers;
using Modifier = std::function<Tensor(std::shared_ptr<fe::graph::Graph>, Tensor)>;
using Options = fe::graph::SDPA_attributes;

struct Scores {
    static constexpr std::int64_t B = 2, H = 2, Q = 4, K = 6, D = 8;
    fe::graph::Graph graph = floats();
    Tensor q = graph.tensor(described({B, H, Q, D})), k = graph.tensor(described({B, H, K, D}));
    Tensor v = graph.tensor(described({B, H, K, D}));
    std::vector<float> a = expect::numbers(B * H * Q * D, 1), b = expect::numbers(B * H * K * D, 2);
    std::vector<float> c = expect::numbers(B * H * K * D, 3);

    std::vector<float> run_with(const Options &options, const Pack &more = {}) {
        auto o = graph.sdpa(q, k, v, options)[0];
        o->set_output(true);
        std::vector<float> out(B * H * Q * D, NAN);
        Pack pack = {{q, a.data()}, {k, b.data()}, {v, c.data()}, {o, out.data()}};
        pack.insert(more.begin(), more.end());
        run(graph, pack);
        return out;
    }
};

static std::vector<double> wide(const std::vector<float> &values) {
    return std::vector<double>(values.begin(), values.end());
}

/** A score modifier gives the same result as the equivalent options of attention. */
static void modifiers_are_as_options() {
    Scores causal, as_causal, corner, as_corner, window, as_window;
    NEAR(causal.run_with(Options().set_score_mod(modifiers::causal_mask)),
         wide(as_causal.run_with(Options().set_causal_mask(true))));
    auto bottom_right = [](auto graph, auto scores) {
        return modifiers::causal_mask_bottom_right(graph, scores, Scores::Q, Scores::K, nullptr, nullptr);
    };
    NEAR(corner.run_with(Options().set_score_mod(bottom_right)),
         wide(as_corner.run_with(Options().set_causal_mask_bottom_right(true))));
    auto band = [](auto graph, auto scores) {
        return modifiers::sliding_window_mask(graph, scores, fe::DiagonalAlignment_t::BOTTOM_RIGHT, 3, 1, Scores::Q,
                                              Scores::K, nullptr, nullptr);
    };
    auto bounds = Options().set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    NEAR(window.run_with(Options().set_score_mod(band)),
         wide(as_window.run_with(bounds.set_diagonal_band_left_bound(3).set_diagonal_band_right_bound(1))));
    Scores biased, as_biased;
    std::vector<float> added = expect::numbers(Scores::Q * Scores::K, 6);
    auto add = biased.graph.tensor(described({1, 1, Scores::Q, Scores::K}));
    auto bias = as_biased.graph.tensor(described({1, 1, Scores::Q, Scores::K}));
    NEAR(biased.run_with(
             Options().set_score_mod(std::bind(modifiers::bias, std::placeholders::_1, std::placeholders::_2, add)),
             {{add, added.data()}}),
         wide(as_biased.run_with(Options().set_bias(bias), {{bias, added.data()}})));
}

static void modifiers_of_lengths_and_slopes() {
    Scores corner, as_corner, linear, as_linear;
    std::vector<std::int32_t> queries = {4, 3}, keys = {6, 4};
    auto lengths = [](Scores &scores) {
        return scores.graph.tensor(described({2, 1, 1, 1}).set_data_type(fe::DataType_t::INT32));
    };
    auto q = lengths(corner), k = lengths(corner), as_q = lengths(as_corner), as_k = lengths(as_corner);
    auto masked = [&](auto graph, auto scores) {
        scores = modifiers::padding_mask(graph, scores, k, q);
        return modifiers::causal_mask_bottom_right(graph, scores, Scores::Q, Scores::K, q, k);
    };
    std::vector<float> got = corner.run_with(Options().set_score_mod(masked), {{q, queries.data()}, {k, keys.data()}});
    auto options = Options().set_causal_mask_bottom_right(true).set_padding_mask(true);
    NEAR(got, wide(as_corner.run_with(options.set_seq_len_q(as_q).set_seq_len_kv(as_k),
                                      {{as_q, queries.data()}, {as_k, keys.data()}})));
    Tensor slopes;
    std::int64_t bytes = 0;
    auto alibi = [&](auto graph, auto scores) {
        return modifiers::alibi_mask(graph, scores, slopes, Scores::H, bytes);
    };
    auto sloped = Options().set_score_mod(alibi);
    auto o = linear.graph.sdpa(linear.q, linear.k, linear.v, sloped)[0];
    o->set_output(true);
    HOLDS(bytes == 8);
    std::vector<float> factors = {1.0f / 16, 1.0f / 256}, out(Scores::B * Scores::H * Scores::Q * Scores::D);
    run(linear.graph, {{linear.q, linear.a.data()},
                       {linear.k, linear.b.data()},
                       {linear.v, linear.c.data()},
                       {slopes, factors.data()},
                       {o, out.data()}});
    NEAR(out, wide(as_linear.run_with(Options().set_alibi_mask(true))));
}

/** The gradient of a soft cap, given by a backward modifier and derived from the forward modifier. */
static void gradients_of_modifiers() {
    std::vector<float> results[2], memory = expect::numbers(8 * 64, 8);
    for (bool is_given : {false, true}) {
        fe::graph::Graph graph = floats();
        std::vector<Tensor> tensors;
        for (int i = 0; i < 6; i++)
            tensors.push_back(graph.tensor(described({1, 1, 8, i < 5 ? 8 : 1}).set_uid(i + 1)));
        auto cap = graph.tensor(0.8f);
        auto softcap = std::make_shared<modifiers::Softcap>();
        using std::placeholders::_1;
        using std::placeholders::_2;
        auto options = fe::graph::SDPA_backward_attributes().set_name("back").set_attn_scale(0.5f);
        options.set_score_mod(std::bind(&modifiers::Softcap::forward, softcap, _1, _2, cap));
        if (is_given)
            options.set_score_mod_bprop(std::bind(&modifiers::Softcap::backward, softcap, _1, _2, cap));
        auto made =
            graph.sdpa_backward(tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5], options);
        for (std::size_t i = 0; i < 3; i++)
            made[i]->set_output(true).set_uid(static_cast<std::int64_t>(i) + 7);
        std::string text;
        GOOD(graph.serialize(text));
        fe::graph::Graph read;
        GOOD(read.deserialize(text));
        GOOD(read.build(cpu(), {fe::HeurMode_t::A}));
        std::vector<float> &out = results[is_given];
        out.assign(3 * 64, NAN);
        std::unordered_map<std::int64_t, void *> pack;
        for (std::int64_t uid = 1; uid < 10; uid++)
            pack[uid] =
                uid < 7 ? &memory[static_cast<std::size_t>(uid) * 64] : &out[static_cast<std::size_t>(uid - 7) * 64];
        GOOD(read.execute(pack));
    }
    NEAR(results[1], wide(results[0]));
    HOLDS(std::fabs(results[1][0]) > 0);
    fe::graph::Graph graph = floats();
    auto x = graph.tensor(described({1, 1, 8, 8})), stats = graph.tensor(described({1, 1, 8, 1}));
    auto alone = [](auto, auto slope) { return slope; };
    graph.sdpa_backward(x, x, x, x, x, stats,
                        fe::graph::SDPA_backward_attributes().set_name("back").set_score_mod_bprop(alone));
    FAILS(graph.validate(), INVALID_VALUE,
          "graph: sdpa_backward 'back': set_score_mod_bprop() was called without set_score_mod(). Give the modifier of "
          "the forward pass, too.");
}

int main() {
    versions_and_handles();
    scalars();
    tensors_tell_what_was_set();
    attributes_tell_what_was_set();
    operations_decide_what_a_boolean_is();
    statistics_to_base_2();
    reductions_of_groups();
    quantizing_of_groups();
    rotary_embedding();
    offsets_count_tokens();
    operations_that_are_refused();
    modifiers_are_as_options();
    modifiers_of_lengths_and_slopes();
    gradients_of_modifiers();
    std::printf("%d failures\n", expect::failures);
    return expect::failures != 0;
}
