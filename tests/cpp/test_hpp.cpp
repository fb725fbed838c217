/* SPDX-License-Identifier: Apache-2.0 */
/* weft.hpp: the names of cuDNN's frontend and the short forms, compared with sums in double; and error messages. */
#include "expect.hpp"

#include <sstream>

namespace fe = weft::frontend;
using fe::graph::Tensor_attributes;
using weft::DataType_t;
using Dims = std::vector<std::int64_t>;

std::string name_from_other_unit(const weft::Tensor &tensor);
weft::DataType_t type_from_other_unit();

static weftHandle_t cpu() {
    static weft::Handle handle(WEFT_DEVICE_CPU);
    return handle;
}

/* ---- Results ---- */

static void ported_life_cycle() {
    const std::int64_t C = 3, K = 2, H = 5;
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::FLOAT)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    auto X =
        graph->tensor(Tensor_attributes().set_name("image").set_dim({1, C, H, H}).set_stride({C * H * H, 1, C * H, C}));
    auto W = graph->tensor(
        Tensor_attributes().set_name("filter").set_dim({K, C, 3, 3}).set_data_type(fe::DataType_t::FLOAT));
    auto options = fe::graph::Conv_fprop_attributes().set_padding({1, 1}).set_stride({1, 1}).set_dilation({1, 1});
    auto conv = graph->conv_fprop(X, W, options);
    auto scaled =
        graph->pointwise(conv, graph->tensor(0.5f),
                         fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::MUL).set_name("half"));
    auto Y = graph->pointwise(scaled, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::RELU_FWD));
    Y->set_output(true).set_uid(77).set_name("Y");

    GOOD(graph->validate());
    HOLDS((Y->get_dim() == Dims{1, K, H, H}));
    HOLDS(Y->get_data_type() == fe::DataType_t::FLOAT && conv->get_is_virtual());
    GOOD(graph->build_operation_graph(cpu()));
    GOOD(graph->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
    GOOD(graph->check_support(cpu()));
    GOOD(graph->build_plans(cpu(), fe::BuildPlanPolicy_t::ALL));
    HOLDS(graph->get_execution_plan_count() >= 2);
    std::int64_t bytes = -1;
    GOOD(graph->get_workspace_size(bytes));
    HOLDS(bytes >= 0 && graph->get_autotune_workspace_size() >= bytes);

    std::vector<float> x = expect::numbers(C * H * H, 1), w = expect::numbers(K * C * 9, 2), y(K * H * H);
    std::vector<double> expected(y.size());
    for (int k = 0; k < K; k++)
        for (int i = 0; i < H * H; i++) {
            double sum = 0;
            for (int c = 0; c < C; c++)
                for (int t = 0; t < 9; t++) {
                    int r = static_cast<int>(i / H) + t / 3 - 1, s = static_cast<int>(i % H) + t % 3 - 1;
                    if (r >= 0 && r < H && s >= 0 && s < H)
                        sum += double(x[(r * H + s) * C + c]) * w[(k * C + c) * 9 + t];
                }
            const Dims &strides = Y->get_stride();
            expected[k * strides[1] + i / H * strides[2] + i % H * strides[3]] = std::max(0.0, sum / 2);
        }
    std::vector<char> workspace(static_cast<std::size_t>(graph->get_autotune_workspace_size()));
    std::unordered_map<std::shared_ptr<Tensor_attributes>, void *> pack = {{X, x.data()}, {W, w.data()}, {Y, y.data()}};
    GOOD(graph->execute(cpu(), pack, workspace.data()));
    NEAR(y, expected);
    for (std::int64_t i = 0; i < graph->get_execution_plan_count(); i++) {
        std::fill(y.begin(), y.end(), -1.0f);
        GOOD(graph->execute_plan_at_index(cpu(), pack, workspace.data(), i));
        NEAR(y, expected);
    }
    GOOD(graph->autotune(cpu(), pack, workspace.data()));
    std::unordered_map<std::shared_ptr<Tensor_attributes>, void *> weights = {{W, w.data()}}, results = {{Y, y.data()}};
    GOOD(graph->freeze(weights));
    std::fill(y.begin(), y.end(), -1.0f);
    GOOD(graph->execute(cpu(), pack, workspace.data()));
    NEAR(y, expected);
    HOLDS(graph->freeze(results).get_message().find("it cannot be frozen, because the plan writes it") !=
          std::string::npos);

    std::vector<std::uint8_t> saved;
    GOOD(graph->serialize(saved));
    fe::graph::Graph loaded;
    GOOD(loaded.deserialize(cpu(), saved));
    std::vector<char> again(static_cast<std::size_t>(loaded.get_workspace_size()));
    std::fill(y.begin(), y.end(), -1.0f);
    std::unordered_map<std::int64_t, void *> by_uid = {
        {X->get_uid(), x.data()}, {W->get_uid(), w.data()}, {77, y.data()}};
    GOOD(loaded.execute(cpu(), by_uid, again.data()));
    NEAR(y, expected);
    Tensor_attributes found;
    GOOD(graph->query_tensor_attributes_of_uid(77, found));
    HOLDS(found.get_name() == "Y" && found.get_volume() == K * H * H);
}

/* Names from the other unit, a scalar with double tensors, comparison, selection, reduction, slices. */
static void short_way() {
    weft::Graph g(DataType_t::DOUBLE);
    auto x = g.tensor({4, 6}, "x");
    HOLDS(name_from_other_unit(x) == "x" && type_from_other_unit() == DataType_t::NOT_SET);
    auto part = g.slice(x, weft::Slice_attributes().set_slices({{1, 3}, {0, 6}}).set_strides({1, 2}));
    auto mask = g.cmp_gt(part, 0.1);
    auto chosen = g.binary_select(g.mul(part, 0.1), g.leaky_relu(part, 0.25), mask);
    auto sum = g.reduction(chosen, weft::Reduction_attributes().set_mode(weft::ReductionMode_t::ADD).set_dims({1}));
    g.build(cpu()).or_throw();
    HOLDS(sum->get_data_type() == DataType_t::DOUBLE && (sum->get_dim() == Dims{2, 1}) && !sum->get_is_virtual());
    double in[24], out[2], expected[2] = {};
    for (int i = 0; i < 24; i++)
        in[i] = 0.07 * (i % 5) - 0.1;
    for (int i = 6; i < 18; i += 2)
        expected[i / 12] += in[i] > 0.1 ? in[i] * 0.1 : in[i] < 0 ? in[i] * 0.25 : in[i];
    GOOD(g.execute({{x, in}, {sum, out}}));
    HOLDS(std::fabs(out[0] - expected[0]) < 1e-12 && std::fabs(out[1] - expected[1]) < 1e-12);
}

/* A sequence of two channels, each filtered separately, and its gradients without an activation. */
static void causal_convolution() {
    weft::Graph g(DataType_t::FLOAT);
    auto x = g.tensor({1, 2, 3}), w = g.tensor({2, 2}), b = g.tensor({2}), dy = g.tensor({1, 2, 3});
    auto y = g.causal_conv1d(x, w, weft::Causal_conv1d_attributes().set_bias(b));
    auto [dx, dw, db] = g.causal_conv1d_backward(dy, x, w, weft::Causal_conv1d_backward_attributes().set_bias(b));
    for (auto &result : {y, dx, dw, db})
        result->set_output(true);
    GOOD(g.build(cpu()));
    std::vector<float> in = {1, 2, 3, 4, 5, 6}, filters = {10, 1, 0, 2}, bias = {0.5f, -1}, loss = {1, 0, 1, 0, 1, 2};
    std::vector<float> out(6), of_x(6), of_filters(4), of_bias(2);
    GOOD(g.execute({{x, in.data()},
                    {w, filters.data()},
                    {b, bias.data()},
                    {dy, loss.data()},
                    {y, out.data()},
                    {dx, of_x.data()},
                    {dw, of_filters.data()},
                    {db, of_bias.data()}}));
    NEAR(out, (std::vector<double>{1.5, 12.5, 23.5, 7, 9, 11}));
    NEAR(of_x, (std::vector<double>{1, 10, 1, 0, 2, 4}));
    NEAR(of_filters, (std::vector<double>{2, 4, 14, 17}));
    NEAR(of_bias, (std::vector<double>{2, 3}));
}

static void norms_keep_what_they_are_asked_for() {
    weft::Graph g(DataType_t::FLOAT);
    auto x = g.tensor({2, 8}), scale = g.tensor({1, 8}), bias = g.tensor({1, 8});
    auto inference = weft::Layernorm_attributes().set_forward_phase(weft::NormFwdPhase_t::INFERENCE).set_epsilon(1e-3f);
    auto [y, mean, inv] = g.layernorm(x, scale, bias, inference);
    HOLDS(!mean && !inv);
    auto training = weft::Rmsnorm_attributes().set_forward_phase(weft::NormFwdPhase_t::TRAINING).set_epsilon(1e-3f);
    auto [z, inv_rms] = g.rmsnorm(x, scale, training);
    y->set_output(true), z->set_output(true), inv_rms->set_output(true);
    GOOD(g.build(cpu()));
    std::vector<float> in = expect::numbers(16, 3), s = expect::numbers(8, 4), b = expect::numbers(8, 5);
    std::vector<float> normed(16), rms(16), inverse(2);
    std::vector<double> expected(16), expected_rms(16), expected_inverse(2);
    for (int r = 0; r < 2; r++) {
        double sum = 0, squares = 0, variance = 0;
        for (int c = 0; c < 8; c++)
            sum += in[r * 8 + c], squares += double(in[r * 8 + c]) * in[r * 8 + c];
        for (int c = 0; c < 8; c++)
            variance += std::pow(in[r * 8 + c] - sum / 8, 2) / 8;
        expected_inverse[r] = 1 / std::sqrt(squares / 8 + 1e-3);
        for (int c = 0; c < 8; c++) {
            expected[r * 8 + c] = (in[r * 8 + c] - sum / 8) / std::sqrt(variance + 1e-3) * s[c] + b[c];
            expected_rms[r * 8 + c] = in[r * 8 + c] * expected_inverse[r] * s[c];
        }
    }
    GOOD(g.execute({{x, in.data()},
                    {scale, s.data()},
                    {bias, b.data()},
                    {y, normed.data()},
                    {z, rms.data()},
                    {inv_rms, inverse.data()}}));
    NEAR(normed, expected);
    NEAR(rms, expected_rms);
    NEAR(inverse, expected_inverse);
}

static void results_have_the_strides_of_cudnn() {
    fe::graph::Graph g;
    g.set_io_data_type(fe::DataType_t::BFLOAT16).set_compute_data_type(fe::DataType_t::FLOAT);
    g.set_intermediate_data_type(fe::DataType_t::FLOAT);
    auto tensor = [&g](Dims dims, Dims strides) {
        return g.tensor(Tensor_attributes().set_dim(dims).set_stride(strides));
    };
    auto x = tensor({2, 8, 6, 7}, {336, 42, 7, 1}), w = tensor({4, 8, 3, 3}, {72, 9, 3, 1});
    auto conv = fe::graph::Conv_fprop_attributes().set_padding({1, 1}).set_stride({1, 1}).set_dilation({1, 1});
    auto y = g.conv_fprop(x, w, conv);
    auto padded = tensor({4, 8}, {16, 1});
    auto relu = g.pointwise(padded, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::RELU_FWD));
    auto slice = g.slice(padded, fe::graph::Slice_attributes().set_slices({{0, 4}, {2, 8}}).set_strides({2, 3}));
    auto q = tensor({2, 3, 5, 8}, {120, 8, 24, 1});
    auto [o, stats] = g.sdpa(q, q, q, fe::graph::SDPA_attributes().set_generate_stats(true));
    auto scale = tensor({1, 8}, {8, 1});
    auto epsilon = g.tensor(1e-5f);
    auto norm = fe::graph::Layernorm_attributes().set_forward_phase(fe::NormFwdPhase_t::TRAINING);
    auto [normed, mean, inverse] = g.layernorm(padded, scale, scale, norm.set_epsilon(epsilon));
    auto pooling = weft::Resample_attributes().set_resampling_mode(weft::ResampleMode_t::MAXPOOL).set_window({2, 2});
    auto pooled = g.resample(x, pooling.set_stride({2, 2}))[0];
    for (const weft::Tensor &each : {y, relu, slice, o, stats, normed, mean, inverse, pooled})
        each->set_output(true);
    GOOD(g.validate());
    HOLDS((y->get_stride() == Dims{168, 1, 28, 4}) && (relu->get_stride() == Dims{16, 1}));
    HOLDS((slice->get_dim() == Dims{2, 2}) && (slice->get_stride() == Dims{32, 3}));
    HOLDS((o->get_stride() == Dims{120, 40, 8, 1}) && (stats->get_data_type() == fe::DataType_t::FLOAT));
    HOLDS((normed->get_stride() == Dims{16, 1}) && (mean->get_stride() == Dims{1, 1}));
    HOLDS(mean->get_data_type() == fe::DataType_t::BFLOAT16 && inverse->get_data_type() == fe::DataType_t::BFLOAT16);
    HOLDS((pooled->get_stride() == Dims{72, 1, 24, 8}));
}

static void pooling_with_its_index() {
    weft::Graph g(DataType_t::FLOAT);
    auto x = g.tensor({1, 1, 4, 4});
    auto how = weft::Resample_attributes().set_resampling_mode(weft::ResampleMode_t::MAXPOOL).set_window({2, 2});
    auto [y, index] = g.resample(x, how.set_stride({1, 2}).set_dilation({2, 1}).set_generate_index(true));
    y->set_output(true), index->set_output(true);
    GOOD(g.build(cpu()));
    HOLDS(index->get_data_type() == DataType_t::INT8);
    std::vector<float> in = expect::numbers(16, 6), out(4);
    std::vector<std::int8_t> places(4);
    GOOD(g.execute({{x, in.data()}, {y, out.data()}, {index, places.data()}}));
    for (int i = 0; i < 4; i++) {
        int first = i / 2 * 4 + i % 2 * 2, best = 0;
        for (int t = 1; t < 4; t++)
            if (in[first + t / 2 * 8 + t % 2] > in[first + best / 2 * 8 + best % 2])
                best = t;
        HOLDS(out[i] == in[first + best / 2 * 8 + best % 2] && places[i] == best);
    }
    HOLDS(!weft::Graph(DataType_t::FLOAT).resample(x, weft::Resample_attributes())[1]);
    how.set_resampling_mode(weft::ResampleMode_t::AVGPOOL_INCLUDE_PADDING); /* an average has no index */
    HOLDS(!weft::Graph(DataType_t::FLOAT).resample(x, how)[1]);
}

struct Attention {
    static constexpr int S = 4, D = 3;
    std::vector<float> q = expect::numbers(S * D, 7), k = expect::numbers(S * D, 8), v = expect::numbers(S * D, 9);
    std::vector<float> slope = expect::numbers(S * D, 10);
    std::vector<double> p, o, stats, dq, dk, dv;

    /** Causal; if a factor is given, scores become factor * tanh(scores / factor). */
    explicit Attention(double scale, double factor = 0)
        : p(S * S), o(S * D), stats(S), dq(S * D), dk(S * D), dv(S * D) {
        for (int i = 0; i < S; i++)
            forward(i, scale, factor);
        for (int i = 0; i < S; i++)
            backward(i, scale);
    }
    void forward(int i, double scale, double factor) {
        double sum = 0;
        for (int j = 0; j <= i; j++) {
            double score = 0;
            for (int d = 0; d < D; d++)
                score += scale * q[i * D + d] * k[j * D + d];
            sum += p[i * S + j] = std::exp(factor ? factor * std::tanh(score / factor) : score);
        }
        stats[i] = std::log(sum);
        for (int j = 0; j <= i; j++)
            for (int d = 0; d < D; d++)
                o[i * D + d] += (d ? p[i * S + j] : p[i * S + j] /= sum) * v[j * D + d];
    }
    void backward(int i, double scale) {
        double dot = 0;
        for (int d = 0; d < D; d++)
            dot += slope[i * D + d] * o[i * D + d];
        for (int j = 0; j <= i; j++) {
            double dp = 0;
            for (int d = 0; d < D; d++)
                dp += slope[i * D + d] * v[j * D + d];
            for (int d = 0; d < D; d++) {
                dv[j * D + d] += p[i * S + j] * slope[i * D + d];
                dq[i * D + d] += scale * p[i * S + j] * (dp - dot) * k[j * D + d];
                dk[j * D + d] += scale * p[i * S + j] * (dp - dot) * q[i * D + d];
            }
        }
    }
};

static void attention_and_its_gradients() {
    Attention a(0.5);
    const Dims dims = {1, 1, Attention::S, Attention::D};
    weft::Graph g(DataType_t::FLOAT);
    auto q = g.tensor(dims, "q"), k = g.tensor(dims, "k"), v = g.tensor(dims, "v"), slope = g.tensor(dims, "dO");
    auto [o, stats] =
        g.sdpa(q, k, v, weft::SDPA_attributes().set_causal_mask(true).set_attn_scale(0.5f).set_generate_stats(true));
    o->set_output(true), stats->set_output(true);
    auto masked = weft::SDPA_backward_attributes().set_causal_mask(true).set_attn_scale(0.5f);
    auto [dq, dk, dv] = g.sdpa_backward(q, k, v, o, slope, stats, masked.set_deterministic_algorithm(true));
    for (auto &each : {dq, dk, dv})
        each->set_output(true);
    GOOD(g.build(cpu()));
    std::vector<float> out(12), sums(4), gq(12), gk(12), gv(12);
    GOOD(g.execute({{q, a.q.data()},
                    {k, a.k.data()},
                    {v, a.v.data()},
                    {slope, a.slope.data()},
                    {o, out.data()},
                    {stats, sums.data()},
                    {dq, gq.data()},
                    {dk, gk.data()},
                    {dv, gv.data()}}));
    NEAR(out, a.o);
    NEAR(sums, a.stats);
    NEAR(gq, a.dq);
    NEAR(gk, a.dk);
    NEAR(gv, a.dv);
}

/** The caller's mask multiplies the weights, and the remaining ones are doubled. Checks o and dV. */
static void dropout_by_a_mask() {
    Attention a(0.5);
    const int S = Attention::S, D = Attention::D;
    const Dims dims = {1, 1, S, D};
    weft::Graph g(DataType_t::FLOAT);
    auto q = g.tensor(dims, "q"), k = g.tensor(dims, "k"), v = g.tensor(dims, "v"), slope = g.tensor(dims, "dO");
    auto mask = g.tensor({1, 1, S, S}, "mask"), scale = g.tensor({1, 1, 1, 1}, "scale");
    auto forward = weft::SDPA_attributes().set_causal_mask(true).set_attn_scale(0.5f).set_generate_stats(true);
    auto [o, stats] = g.sdpa(q, k, v, forward.set_dropout(mask, scale));
    auto back = weft::SDPA_backward_attributes().set_causal_mask(true).set_attn_scale(0.5f);
    auto [dq, dk, dv] = g.sdpa_backward(q, k, v, o, slope, stats, back.set_dropout(mask, scale, scale));
    o->set_output(true), dv->set_output(true);
    GOOD(g.build(cpu()));
    std::vector<float> kept(S * S), out(S * D), gv(S * D);
    std::vector<double> want(S * D), want_v(S * D);
    for (int i = 0; i < S; i++)
        for (int j = 0; j < S; j++) {
            kept[i * S + j] = (i + j) % 3 ? 1.0f : 0.0f;
            for (int d = 0; d < D; d++) {
                want[i * D + d] += 2 * a.p[i * S + j] * kept[i * S + j] * a.v[j * D + d];
                want_v[j * D + d] += 2 * a.p[i * S + j] * kept[i * S + j] * a.slope[i * D + d];
            }
        }
    float two = 2;
    GOOD(g.execute({{q, a.q.data()},
                    {k, a.k.data()},
                    {v, a.v.data()},
                    {slope, a.slope.data()},
                    {mask, kept.data()},
                    {scale, &two},
                    {o, out.data()},
                    {dv, gv.data()}}));
    NEAR(out, want);
    NEAR(gv, want_v);
}

/** With scales of 1 and float operands: same results as sdpa, and the largest magnitudes. */
static void attention_of_fp8() {
    Attention a(0.5);
    const Dims dims = {1, 1, Attention::S, Attention::D};
    weft::Graph g(DataType_t::FLOAT);
    auto q = g.tensor(dims, "q"), k = g.tensor(dims, "k"), v = g.tensor(dims, "v"), slope = g.tensor(dims, "dO");
    auto one = g.tensor({1, 1, 1, 1}, "one"), two = g.tensor({1, 1, 1, 1}, "two");
    auto forward = weft::SDPA_fp8_attributes().set_causal_mask(true).set_attn_scale(0.5f).set_generate_stats(true);
    auto [o, stats, amax_s, amax_o] = g.sdpa_fp8(q, k, v, one, one, one, one, one, two, forward);
    auto back = weft::SDPA_fp8_backward_attributes().set_causal_mask(true).set_attn_scale(0.5f);
    auto half = g.mul(o, 0.5f);
    auto made = g.sdpa_fp8_backward(q, k, v, half, slope, stats, one, one, one, one, one, one, one, one, two, one, one,
                                    one, back);
    for (auto &each : {o, stats, amax_s, amax_o, made[0], made[1], made[2], made[3], made[6]})
        each->set_output(true);
    GOOD(g.build(cpu()));
    float factors[] = {1, 2};
    std::vector<float> out(12), sums(4), s(1), largest(1), gq(12), gk(12), gv(12), of_q(1), of_p(1);
    GOOD(g.execute({{q, a.q.data()},
                    {k, a.k.data()},
                    {v, a.v.data()},
                    {slope, a.slope.data()},
                    {one, &factors[0]},
                    {two, &factors[1]},
                    {o, out.data()},
                    {stats, sums.data()},
                    {amax_s, s.data()},
                    {amax_o, largest.data()},
                    {made[0], gq.data()},
                    {made[1], gk.data()},
                    {made[2], gv.data()},
                    {made[3], of_q.data()},
                    {made[6], of_p.data()}}));
    NEAR(sums, a.stats);
    NEAR(gk, a.dk);
    NEAR(gv, a.dv);
    NEAR(s, std::vector<double>{1.0}); /* the first row sees one key */
    std::vector<double> doubled, twice;
    double most_o = 0, most_q = 0;
    for (std::size_t i = 0; i < 12; i++) {
        doubled.push_back(2 * a.o[i]), twice.push_back(2 * a.dq[i]);
        most_o = std::max(most_o, std::fabs(a.o[i])), most_q = std::max(most_q, std::fabs(a.dq[i]));
    }
    NEAR(out, doubled);
    NEAR(gq, twice);
    NEAR(largest, std::vector<double>{most_o});
    NEAR(of_q, std::vector<double>{most_q});
    HOLDS(of_p[0] > 0);
}

/** One block per row: same result as sdpa with operands that are scaled beforehand. */
static void attention_of_mxfp8() {
    Attention a(1.0);
    const std::int64_t S = Attention::S, D = Attention::D;
    const Dims dims = {1, 1, S, D}, of_rows = {1, 1, S, 1}, of_columns = {1, 1, 1, D};
    weft::Graph g(DataType_t::FLOAT);
    auto q = g.tensor(dims), k = g.tensor(dims), v = g.tensor(dims), slope = g.tensor(dims);
    auto rows = g.tensor(of_rows), columns = g.tensor(of_columns);
    auto forward = weft::SDPA_mxfp8_attributes().set_causal_mask(true).set_generate_stats(true);
    auto [o, stats, amax_o] = g.sdpa_fp8(q, k, v, rows, rows, columns, forward);
    auto back = weft::SDPA_mxfp8_backward_attributes().set_causal_mask(true);
    auto made = g.sdpa_fp8_backward(q, q, k, k, v, o, slope, slope, slope, stats, rows, columns, rows, columns, rows,
                                    rows, columns, back);
    for (auto &each : {o, stats, amax_o, made[0], made[1], made[2], made[3]})
        each->set_output(true);
    GOOD(g.build(cpu()));
    std::vector<float> ones(static_cast<std::size_t>(std::max(S, D)), 1.0f);
    std::vector<float> out(12), sums(4), largest(1), gq(12), gk(12), gv(12), of_q(1);
    GOOD(g.execute({{q, a.q.data()},
                    {k, a.k.data()},
                    {v, a.v.data()},
                    {slope, a.slope.data()},
                    {rows, ones.data()},
                    {columns, ones.data()},
                    {o, out.data()},
                    {stats, sums.data()},
                    {amax_o, largest.data()},
                    {made[0], gq.data()},
                    {made[1], gk.data()},
                    {made[2], gv.data()},
                    {made[3], of_q.data()}}));
    NEAR(out, a.o);
    NEAR(sums, a.stats);
    NEAR(gq, a.dq);
    NEAR(gk, a.dk);
    NEAR(gv, a.dv);
    double most = 0;
    for (double each : a.o)
        most = std::max(most, std::fabs(each));
    NEAR(largest, std::vector<double>{most});
}

static void product_of_fp8() {
    weft::Graph g(DataType_t::FLOAT);
    auto A = g.tensor({1, 2, 3}, "A"), B = g.tensor({1, 3, 2}, "B"), half = g.tensor({1, 1, 1}),
         four = g.tensor({1, 1, 1});
    auto [C, amax] = g.matmul_fp8(A, B, half, half, four, weft::Matmul_fp8_attributes().set_name("fp8"));
    C->set_output(true), amax->set_output(true);
    GOOD(g.build(cpu()));
    float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, -2, 3, -4, 5, -6}, factors[] = {0.5f, 4};
    std::vector<float> c(4), largest(1);
    GOOD(g.execute({{A, a}, {B, b}, {half, &factors[0]}, {four, &factors[1]}, {C, c.data()}, {amax, largest.data()}}));
    NEAR(c, (std::vector<double>{22, -28, 49, -64}));
    NEAR(largest, std::vector<double>{16});
}

static void modified_scores() {
    Attention a(1.0, 0.75);
    const Dims dims = {1, 1, Attention::S, Attention::D};
    weft::Graph g(DataType_t::FLOAT);
    auto q = g.tensor(dims), k = g.tensor(dims), v = g.tensor(dims);
    auto soft_cap = [](std::shared_ptr<weft::Graph> part, weft::Tensor scores) {
        return part->mul(part->tanh(part->div(scores, 0.75f)), 0.75f);
    };
    auto [o, stats] = g.sdpa(q, k, v, weft::SDPA_attributes().set_causal_mask(true).set_score_mod(soft_cap));
    HOLDS(!stats);
    GOOD(g.build(cpu()));
    std::vector<float> out(12);
    GOOD(g.execute({{q, a.q.data()}, {k, a.k.data()}, {v, a.v.data()}, {o, out.data()}}));
    NEAR(out, a.o);
}

/** A JSON library, as far as graphs use it. */
struct Value {
    std::string text;
    static Value parse(const std::string &text) { return {text}; }
    std::string dump() const { return text; }
};

/** Attention with a modifier, numbers, a constant, a window and a by-value scalar. */
static void graphs_as_json() {
    Attention a(1.0, 0.75);
    const Dims dims = {1, 1, Attention::S, Attention::D};
    weft::Graph g(DataType_t::FLOAT);
    g.set_name("a \"name\"\n of two lines");
    auto q = g.tensor(dims, "q"), k = g.tensor(dims), v = g.tensor(dims);
    auto factor = g.tensor(Tensor_attributes().set_dim({1, 1, 1, 1}).set_is_pass_by_value(true));
    q->set_uid(11), k->set_uid(12), v->set_uid(13), factor->set_uid(14);
    auto soft_cap = [](std::shared_ptr<weft::Graph> part, weft::Tensor scores) {
        return part->mul(part->tanh(part->div(scores, 0.75f)), 0.75f);
    };
    auto [o, stats] = g.sdpa(q, k, v, weft::SDPA_attributes().set_causal_mask(true).set_score_mod(soft_cap));
    auto y = g.mul(g.add(g.mul(o, 2), g.tensor(3.0f)), factor);
    y->set_output(true).set_uid(15);
    std::string text, again;
    GOOD(g.serialize(text));
    weft::Graph read;
    GOOD(read.deserialize(text));
    GOOD(read.serialize(again));
    HOLDS(text == again && read.get_name() == g.get_name());
    Value value;
    weft::Graph other;
    GOOD(read.serialize(value));
    GOOD(other.deserialize(value));
    HOLDS(value.text == text);
    GOOD(other.build(cpu()));
    float half = 0.5f;
    std::vector<float> out(12);
    std::vector<double> expected;
    GOOD(other.execute({{11, a.q.data()}, {12, a.k.data()}, {13, a.v.data()}, {14, &half}, {15, out.data()}}));
    for (double each : a.o)
        expected.push_back(each + 1.5);
    NEAR(out, expected);
    weft::Graph pools(DataType_t::FLOAT);
    auto pool = weft::Resample_attributes().set_resampling_mode(weft::ResampleMode_t::AVGPOOL_INCLUDE_PADDING);
    pools.resample(pools.tensor({1, 1, 4, 4}), pool.set_window({2, 2}).set_stride({2, 2}));
    GOOD(pools.serialize(text));
    GOOD(read.deserialize(text));
    GOOD(read.validate());
    GOOD(read.serialize(again));
    weft::Graph refused(DataType_t::FLOAT);
    refused.reduction(refused.tensor({4}), weft::Reduction_attributes());
    GOOD(refused.serialize(text));
}

static void texts_that_are_no_graphs() {
    weft::Graph g;
    const std::string rest = ". Give that text.", none = "graph: the text is not what serialize() wrote: ";
    FAILS(g.deserialize(std::string()), UNSUPPORTED_GRAPH_FORMAT, none + "at byte 0 a value is expected" + rest);
    FAILS(g.deserialize(std::string("{\"a\" 1}")), UNSUPPORTED_GRAPH_FORMAT, none + "at byte 5 ':' is expected" + rest);
    FAILS(g.deserialize(std::string("[1, 2")), UNSUPPORTED_GRAPH_FORMAT,
          none + "at byte 5 ',' or ']' is expected" + rest);
    FAILS(g.deserialize(std::string(100, '[')), UNSUPPORTED_GRAPH_FORMAT,
          none + "at byte 65 less depth is expected" + rest);
    FAILS(g.deserialize(std::string("{}")), UNSUPPORTED_GRAPH_FORMAT,
          none + "\"weft_graph\": 1 is expected, the form of this version" + rest);
    FAILS(g.deserialize(std::string("{\"weft_graph\": 1, \"nodes\": [{\"inputs\": [{\"tensors\": [5]}]}]}")),
          UNSUPPORTED_GRAPH_FORMAT, none + "a tensor's place is 5, there are 0" + rest);
    std::string text;
    weft::Graph whole(DataType_t::FLOAT);
    whole.relu(whole.tensor({4, 4}));
    GOOD(whole.serialize(text));
    for (std::size_t length = 0; length + 2 < text.size(); length += 7) /* a truncated text is refused */
        HOLDS(g.deserialize(text.substr(0, length)).is_bad());
}

static void overridden_shapes() {
    weft::Graph g(DataType_t::FLOAT);
    g.set_override_shape_enabled(true);
    auto x = g.tensor({4, 8}), y = g.add(x, x);
    y->set_output(true);
    GOOD(g.build(cpu()));
    std::vector<float> in = expect::numbers(16, 11), out(16);
    std::vector<char> workspace(static_cast<std::size_t>(g.get_workspace_size()) + 4096);
    GOOD(g.execute(cpu(), {{x->get_uid(), in.data()}, {y->get_uid(), out.data()}}, workspace.data(),
                   {x->get_uid(), y->get_uid()}, {{2, 8}, {2, 8}}, {{8, 1}, {8, 1}}));
    for (int i = 0; i < 16; i++)
        HOLDS(out[i] == 2 * in[i]);
}

/* ---- Errors ---- */

static void graphs_that_make_no_sense() {
    weft::Graph g(DataType_t::FLOAT), other(DataType_t::FLOAT);
    g.set_name("g");
    FAILS(g.validate(), INVALID_VALUE, "graph 'g': it has no operations. Add one, for example matmul(a, b).");
    auto a = g.tensor({2, 3}, "a");
    FAILS(g.build(nullptr), HANDLE_ERROR,
          "graph 'g': the handle is null. Give what weftCreate() or weft::Handle made.");
    g.matmul(a, nullptr, weft::Matmul_attributes().set_name("mm"));
    FAILS(g.validate(), ATTRIBUTE_NOT_SET,
          "graph 'g': matmul 'mm': B is nullptr, and the operation needs a tensor there. Give what tensor() or an "
          "operation returned.");
    weft::Graph shapes(DataType_t::FLOAT);
    shapes.set_name("h").matmul(shapes.tensor({2, 3}, "a"), shapes.tensor({4, 5}, "b"),
                                weft::Matmul_attributes().set_name("mm"));
    weft::error_t mismatch = shapes.validate();
    HOLDS(mismatch == weft::error_code_t::SHAPE_DEDUCTION_FAILED && mismatch.backend_status);
    for (const char *part : {"graph 'h'", "mm", "3", "4"})
        expect::holds(mismatch.get_message().find(part) != std::string::npos, mismatch.get_message().c_str(), __LINE__);
    weft::Graph bare;
    bare.relu(bare.tensor(Tensor_attributes().set_name("x")));
    FAILS(
        bare.validate(), ATTRIBUTE_NOT_SET,
        "graph: relu 'relu_0': operand 1, tensor 'x' (no uid yet), has no dims: 1 to 8 extents are expected, none are "
        "set. Call set_dim().");
    weft::Graph untyped;
    untyped.relu(untyped.tensor({4}, "x"));
    FAILS(untyped.validate(), ATTRIBUTE_NOT_SET,
          "graph: relu 'relu_0': operand 1, tensor 'x' (no uid yet), has no data type. Call set_data_type(), or "
          "set_io_data_type() of the graph.");
    other.add(g.exp(a, weft::Pointwise_attributes().set_name("e")), 1.0f);
    FAILS(
        other.validate(), INVALID_VALUE,
        "graph: add 'add_0': operand 1, tensor 'e::OUT_0' (no uid yet), is a result of another graph. Give a tensor of "
        "this graph.");
}

static void attributes_that_make_no_sense() {
    weft::Graph g(DataType_t::FLOAT);
    auto x = g.tensor(Tensor_attributes().set_name("x").set_dim({4}).set_uid(5));
    g.relu(x)->set_name("y").set_uid(5);
    FAILS(g.validate(), INVALID_VALUE,
          "graph: tensor 'y' (uid 5) has the uid of tensor 'x' (uid 5): uids are unique in a graph. Give another, or "
          "none.");
    weft::Graph mode(DataType_t::FLOAT);
    mode.pointwise(x, x, weft::Pointwise_attributes().set_mode(weft::PointwiseMode_t::EXP).set_name("p"));
    FAILS(
        mode.validate(), INVALID_VALUE,
        "graph: pointwise 'p': 2 operands are given, and 1 fit its mode. Set the mode, and give as many operands as it "
        "takes.");
    weft::Graph output(DataType_t::FLOAT);
    auto in = output.tensor({4}, "in");
    output.relu(in), in->set_output(true);
    FAILS(
        output.validate(), INVALID_VALUE,
        "graph: tensor 'in' (uid 1): set_output(true) was called, but no operation makes it. Call it on the result of "
        "an operation.");
    weft::Graph padded(DataType_t::FLOAT);
    auto q = padded.tensor({1, 1, 4, 8});
    padded.sdpa(q, q, q, weft::SDPA_attributes().set_padding_mask(true).set_name("att"));
    FAILS(padded.validate(), INVALID_VALUE,
          "graph: sdpa 'att': set_padding_mask(true) needs the lengths of the sequences. Call set_seq_len_q() and "
          "set_seq_len_kv(), [B, 1, 1, 1] of INT32.");
}

static void plans_and_memory() {
    weft::Graph g(DataType_t::FLOAT);
    g.set_name("g");
    auto x = g.tensor({4}, "x");
    auto inner = g.exp(x), y = g.relu(inner);
    inner->set_name("inner"), y->set_name("y");
    float in[4] = {}, out[4] = {};
    const char *unbuilt = "graph 'g': no plan is built. Call build() first.";
    std::vector<std::uint8_t> data;
    std::unordered_map<std::shared_ptr<weft::graph::Tensor_attributes>, void *> pack = {{x, in}, {y, out}};
    FAILS(g.execute({{x, in}, {y, out}}), GRAPH_EXECUTION_PLAN_CREATION_FAILED, unbuilt);
    FAILS(g.execute(cpu(), pack, nullptr), GRAPH_EXECUTION_PLAN_CREATION_FAILED, unbuilt);
    FAILS(g.warmup(cpu()), GRAPH_EXECUTION_PLAN_CREATION_FAILED, unbuilt);
    FAILS(g.serialize(data), GRAPH_EXECUTION_PLAN_CREATION_FAILED, unbuilt);
    FAILS(g.autotune(cpu(), pack, nullptr), GRAPH_EXECUTION_PLAN_CREATION_FAILED, unbuilt);
    FAILS(g.create_execution_plans(), HEURISTIC_QUERY_FAILED,
          "graph 'g': create_execution_plans() needs the operation graph. Call build_operation_graph() first.");
    GOOD(g.build(cpu()));
    FAILS(
        g.execute({{x, in}}), INVALID_VARIANT_PACK,
        "graph 'g': execute: tensor 'y' (uid 3) has no memory: every input and output needs an address. Add it to the "
        "variant pack.");
    /* Memory of virtual tensors and of unknown uids is ignored. */
    out[0] = -1;
    GOOD(g.execute({{x, in}, {y, out}, {inner, in}}));
    HOLDS(out[0] == 1);
    out[0] = -1;
    GOOD(g.execute({{1, in}, {3, out}, {9, in}}));
    HOLDS(out[0] == 1);
    FAILS(
        g.execute({{x, in}, {y, out}, {nullptr, in}}), INVALID_VARIANT_PACK,
        "graph 'g': execute: memory is given for nullptr, a result that is not computed. Leave it out, or ask for the "
        "result.");
    weft::error_t null = g.execute({{x, nullptr}, {y, out}});
    HOLDS(null.is_bad() && null.get_message().find("'x'") != std::string::npos);
    FAILS(g.build_plan_at_index(9), INVALID_VALUE,
          "graph 'g': there is no plan 9: expected 0 to " + std::to_string(g.get_execution_plan_count() - 1) +
              ". Choose one of these.");
    FAILS(g.populate_cuda_graph(cpu(), std::unordered_map<std::int64_t, void *>{}, nullptr, nullptr),
          GRAPH_NOT_SUPPORTED,
          "graph 'g': plans are not written into CUDA graphs directly. Capture the stream of execute() instead.");
    weft::error_t damaged = g.deserialize(cpu(), {1, 2, 3});
    HOLDS(damaged == weft::error_code_t::UNSUPPORTED_GRAPH_FORMAT && !damaged.get_message().empty());
    g.deselect_engines({"cpu.fast"});
    GOOD(g.build(cpu()));
    HOLDS(g.get_refusals().size() >= 1 && g.get_refusals()[0].find("cpu.fast") != std::string::npos);
    HOLDS(g.get_refusals()[0].find("dropped by deselect_engines().") != std::string::npos);
    g.deselect_engines({"cpu.fast", "eng4"});
    weft::error_t none = g.build(cpu());
    HOLDS(none == weft::error_code_t::GRAPH_NOT_SUPPORTED);
    HOLDS(none.get_message().find("dropped by deselect_engines().") != std::string::npos);
    try {
        g.build(cpu()).or_throw();
        HOLDS(!"thrown");
    } catch (const weft::Error &error) {
        HOLDS(error.what() == none.get_message() && error.error() == none.get_code());
    }
    weft::Handle nowhere(WEFT_DEVICE_CPU, 7);
    HOLDS(!nowhere.get() && nowhere.status() == weft::error_code_t::HANDLE_ERROR && !nowhere.status().err_msg.empty());
}

/* ---- Features that ported programs rely on  */

struct Attention_gradient {
    weft::Graph graph{DataType_t::FLOAT};
    weft::Tensor q = make({1, 2, 8, 8}, 1), k = make({1, 2, 8, 8}, 2), v = make({1, 2, 8, 8}, 3);
    weft::Tensor o = make({1, 2, 8, 8}, 4), dO = make({1, 2, 8, 8}, 5), stats = make({1, 2, 8, 1}, 6);

    weft::Tensor make(const Dims &dims, std::int64_t uid) {
        return graph.tensor(Tensor_attributes().set_dim(dims).set_uid(uid));
    }
    /** Builds and runs the graph; the memory of tensor uid is at 128 * uid. */
    std::vector<float> run(const weft::SDPA_backward_attributes &attributes) {
        auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, dO, stats, attributes);
        dq->set_output(true).set_uid(9), dk->set_output(true).set_uid(10), dv->set_output(true).set_uid(11);
        GOOD(graph.build(cpu()));
        std::vector<float> memory = expect::numbers(128 * 12, 3);
        std::fill(memory.begin() + 128 * 8, memory.end(), NAN);
        std::unordered_map<std::int64_t, void *> pack;
        for (std::int64_t uid = 1; uid < 12; uid++)
            pack[uid] = memory.data() + 128 * uid;
        std::vector<char> workspace(static_cast<std::size_t>(graph.get_workspace_size()) + 64);
        GOOD(graph.execute(cpu(), pack, workspace.data()));
        return memory;
    }
};

static void results_that_the_user_made_have_memory() {
    Attention_gradient with_sink, with_bias;
    auto sink = with_sink.make({1, 2, 1, 1}, 7), dsink = with_sink.make({1, 2, 1, 1}, 8);
    auto memory = with_sink.run(weft::SDPA_backward_attributes().set_sink_token(sink).set_dsink_token(dsink));
    HOLDS(!dsink->get_is_virtual() && std::isfinite(memory[128 * 8]) && std::isfinite(memory[128 * 8 + 1]));
    auto bias = with_bias.make({1, 2, 8, 8}, 7), dbias = with_bias.make({1, 2, 8, 8}, 8);
    memory = with_bias.run(weft::SDPA_backward_attributes().set_bias(bias).set_dbias(dbias));
    HOLDS(!dbias->get_is_virtual());
    for (std::size_t i = 128 * 8; i < 128 * 9; i++)
        HOLDS(std::isfinite(memory[i]));
    weft::Graph g(DataType_t::FLOAT); /* unnamed results are outputs, with or without the user's tensor */
    auto x = g.tensor({1, 1, 4, 8}), s = g.tensor({1, 1, 4, 1}), db = g.tensor({1, 1, 4, 4});
    auto made = g.sdpa_backward(x, g.tensor({1, 1, 4, 8}), g.tensor({1, 1, 4, 8}), g.tensor({1, 1, 4, 8}),
                                g.tensor({1, 1, 4, 8}), s,
                                weft::SDPA_backward_attributes().set_bias(g.tensor({1, 1, 4, 4})).set_dbias(db));
    GOOD(g.validate());
    HOLDS(!made[0]->get_is_virtual() && !db->get_is_virtual());
}

static void dropout_by_the_generator() {
    weft::Graph g(DataType_t::FLOAT);
    auto scalar = g.tensor(Tensor_attributes().set_dim({1, 1, 1, 1}).set_data_type(DataType_t::INT64));
    auto offset = g.tensor(Tensor_attributes().set_dim({1, 1, 1, 1}).set_data_type(DataType_t::INT64));
    float probability = 0.5f;
    auto q = g.tensor({1, 1, 8, 8}), k = g.tensor({1, 1, 8, 8}), v = g.tensor({1, 1, 8, 8});
    auto made = g.sdpa(q, k, v, weft::SDPA_attributes().set_dropout(probability, scalar, offset));
    GOOD(g.build(cpu()));
    std::vector<float> ones(64, 1), out(64, NAN);
    std::int64_t seed = 7, first = 3;
    std::unordered_map<weft::Tensor, void *> pack = {{q, ones.data()}, {k, ones.data()}, {v, ones.data()},
                                                     {scalar, &seed},  {offset, &first}, {made[0], out.data()}};
    GOOD(g.execute(pack));
    for (float value : out) /* some of eight equal weights remain, and are doubled */
        HOLDS(std::fabs(value * 4 - std::round(value * 4)) < 1e-5 && value >= 0 && value <= 2);
    (void)weft::SDPA_backward_attributes().set_dropout(0.1, scalar, offset);
}

static void booleans_are_bytes() {
    for (bool are_bits : {false, true}) {
        weft::Graph g;
        g.set_compute_data_type(DataType_t::FLOAT).set_booleans_are_bits(are_bits);
        auto make = [&] { return g.tensor(Tensor_attributes().set_dim({1, 2, 8}).set_data_type(DataType_t::BOOLEAN)); };
        auto a = make(), b = make();
        auto both = g.pointwise(a, b, weft::Pointwise_attributes().set_mode(weft::PointwiseMode_t::LOGICAL_AND));
        both->set_output(true).set_data_type(DataType_t::BOOLEAN);
        GOOD(g.build(cpu()));
        std::uint8_t x[16], y[16], z[16];
        for (std::uint8_t i = 0; i < 16; i++)
            x[i] = are_bits ? 0xf0 : i % 2, y[i] = are_bits ? 0x3c : i % 3 == 0, z[i] = 0xff;
        GOOD(g.execute({{a, x}, {b, y}, {both, z}}));
        for (std::uint8_t i = 0; i < 16; i++)
            HOLDS(z[i] == (are_bits ? (i < 2 ? 0x30 : 0xff) : (x[i] && y[i])));
    }
}

static void tensors_of_a_loaded_plan() {
    weft::Graph g(DataType_t::FLOAT), loaded;
    auto x = g.tensor(Tensor_attributes().set_dim({2, 4}).set_uid(0).set_data_type(DataType_t::HALF));
    auto y = g.relu(x);
    y->set_output(true).set_uid(5);
    GOOD(g.build(cpu()));
    std::vector<std::uint8_t> data;
    GOOD(g.serialize(data));
    GOOD(loaded.deserialize(cpu(), data));
    for (weft::Graph *graph : {&g, &loaded}) {
        Tensor_attributes found;
        GOOD(graph->query_tensor_attributes_of_uid(0, found));
        HOLDS((found.get_dim() == Dims{2, 4}) && (found.get_stride() == Dims{4, 1}));
        HOLDS(found.get_data_type() == DataType_t::HALF && found.get_uid() == 0);
        GOOD(graph->query_tensor_attributes_of_uid(5, found));
        HOLDS(found.get_data_type() == DataType_t::FLOAT);
        HOLDS(graph->query_tensor_attributes_of_uid(1, found).is_bad());
    }
}

static void strides_without_dims() {
    weft::Graph g(DataType_t::FLOAT);
    auto x = g.tensor({2, 3, 4}), w = g.tensor({2, 4, 2});
    auto y = g.relu(g.matmul(x, w));
    y->set_output(true).set_stride({1, 4, 2});
    GOOD(g.build(cpu()));
    HOLDS((y->get_dim() == Dims{2, 3, 2}) && (y->get_stride() == Dims{1, 4, 2}));
    std::vector<float> in = expect::numbers(24, 1), factors = expect::numbers(16, 2), out(12, NAN);
    GOOD(g.execute({{x, in.data()}, {w, factors.data()}, {y, out.data()}}));
    std::vector<double> expected(12);
    for (std::size_t b = 0; b < 2; b++)
        for (std::size_t i = 0; i < 3; i++)
            for (std::size_t j = 0; j < 2; j++) {
                double sum = 0;
                for (std::size_t k = 0; k < 4; k++)
                    sum += double(in[b * 12 + i * 4 + k]) * factors[b * 8 + k * 2 + j];
                expected[b + i * 4 + j * 2] = std::max(0.0, sum);
            }
    NEAR(out, expected);
    y->set_stride({6, 2}); /* the wrong rank */
    HOLDS(g.validate().get_message().find("2 strides for 3 dims") != std::string::npos);
}

static void scales_of_one_element() {
    weft::Graph g(DataType_t::FP8_E4M3);
    g.set_compute_data_type(DataType_t::FLOAT);
    std::vector<weft::Tensor> scales;
    for (int i = 0; i < 6; i++)
        scales.push_back(g.tensor({1}, "", DataType_t::FLOAT));
    auto q = g.tensor({1, 1, 16, 16}), k = g.tensor({1, 1, 16, 16}), v = g.tensor({1, 1, 16, 16});
    auto made = g.sdpa_fp8(q, k, v, scales[0], scales[1], scales[2], scales[3], scales[4], scales[5]);
    made[0]->set_output(true);
    GOOD(g.build(cpu()));
    std::vector<std::uint8_t> one(256, 0x38), out(256, 0xff); /* 1.0 in e4m3 */
    float one_scale = 1, two = 2;
    std::unordered_map<weft::Tensor, void *> pack = {{q, one.data()}, {k, one.data()}, {v, one.data()}};
    for (int i = 0; i < 6; i++)
        pack[scales[static_cast<std::size_t>(i)]] = i == 2 ? &two : &one_scale;
    pack[made[0]] = out.data();
    GOOD(g.execute(pack));
    for (std::uint8_t code : out) /* the mean of v, times its scale */
        HOLDS(code == 0x40);
}

static void names_of_ported_programs() {
    auto make = [](std::int64_t rows) {
        weft::Graph g(DataType_t::FLOAT);
        auto x = g.tensor(Tensor_attributes().set_dim({rows, 4}).set_uid(1));
        g.pointwise(x, g.tensor(Tensor_attributes(2.0f)),
                    weft::Pointwise_attributes().set_mode(weft::PointwiseMode_t::MUL))
            ->set_output(true)
            .set_uid(2);
        return g;
    };
    weft::Graph g = make(2), copy(g);
    HOLDS(g.key() == make(2).key() && g.key() != make(3).key() && copy.key() == g.key());
    std::ostringstream out;
    out << g;
    std::string json;
    GOOD(g.serialize(json));
    HOLDS(out.str() == json && g.print() == json && json.find("\"tensors\"") != std::string::npos);
    g.set_sm_version(90).deselect_shared_mem_greater_than(1 << 16).set_kernel_cache(
        std::make_shared<weft::KernelCache>());
    GOOD(g.build(cpu()));
    GOOD(g.warmup(cpu()));
    std::int64_t engine = -1;
    std::unordered_map<weft::KnobType_t, std::int64_t> knobs;
    GOOD(g.get_engine_and_knobs_at_index(0, engine, knobs));
    HOLDS(engine >= 0);
    copy = g;
    float in[8] = {1, 2, 3}, result[8];
    std::unordered_map<std::int64_t, void *> pack = {{1, in}, {2, result}};
    GOOD(copy.execute(pack));
    HOLDS(result[2] == 6);
    HOLDS(fe::detail::get_backend_version() >= 92500 && weftGetCudartVersion() >= 12000);
    HOLDS(fe::get_element_size_in_bits(DataType_t::BFLOAT16) == 16);
    CUstream_st *stream = nullptr;
    HOLDS(weftGetStream(cpu(), &stream) == WEFT_STATUS_SUCCESS);
    weft::Graph same(DataType_t::FLOAT); /* IDENTITY reads its first operand */
    auto x = same.tensor({2}), other = same.tensor({2});
    auto y = same.pointwise(x, other, weft::Pointwise_attributes().set_mode(weft::PointwiseMode_t::IDENTITY));
    GOOD(same.build(cpu()));
    GOOD(same.execute({{x, in}, {y, result}}));
    HOLDS(result[0] == 1 && result[1] == 2);
}

/** Each kind of status has its code; the first and last of a kind. Others have that of the caller. */
static void codes_of_statuses() {
    using weft::error_code_t;
    const std::pair<weftStatus_t, error_code_t> codes[] = {
        {WEFT_STATUS_SUCCESS, error_code_t::OK},
        {WEFT_STATUS_BAD_PARAM, error_code_t::INVALID_VALUE},
        {WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, error_code_t::SHAPE_DEDUCTION_FAILED},
        {WEFT_STATUS_NOT_SUPPORTED, error_code_t::GRAPH_NOT_SUPPORTED},
        {WEFT_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE, error_code_t::GRAPH_NOT_SUPPORTED},
        {WEFT_STATUS_INTERNAL_ERROR, error_code_t::INVALID_VALUE},
        {WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, error_code_t::NVRTC_COMPILATION_FAILED},
        {WEFT_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED, error_code_t::INVALID_VALUE},
        {WEFT_STATUS_EXECUTION_FAILED, error_code_t::GRAPH_EXECUTION_FAILED},
        {WEFT_STATUS_EXECUTION_FAILED_CURAND, error_code_t::GRAPH_EXECUTION_FAILED},
        {WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT, error_code_t::INVALID_VALUE},
    };
    for (const auto &[status, code] : codes) {
        weft::error_t error = weft::detail::error_of(status, error_code_t::INVALID_VALUE);
        HOLDS(error.get_code() == code && error.backend_status == status);
        HOLDS(error.get_message().empty() == (status == WEFT_STATUS_SUCCESS));
    }
    HOLDS(weft::detail::error_of(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, error_code_t::HANDLE_ERROR).get_code() ==
          error_code_t::HANDLE_ERROR);
}

int main() {
    codes_of_statuses();
    results_that_the_user_made_have_memory();
    dropout_by_the_generator();
    booleans_are_bytes();
    tensors_of_a_loaded_plan();
    strides_without_dims();
    scales_of_one_element();
    names_of_ported_programs();
    ported_life_cycle();
    short_way();
    causal_convolution();
    norms_keep_what_they_are_asked_for();
    results_have_the_strides_of_cudnn();
    pooling_with_its_index();
    attention_and_its_gradients();
    dropout_by_a_mask();
    attention_of_fp8();
    attention_of_mxfp8();
    product_of_fp8();
    modified_scores();
    graphs_as_json();
    texts_that_are_no_graphs();
    overridden_shapes();
    graphs_that_make_no_sense();
    attributes_that_make_no_sense();
    plans_and_memory();
    std::printf("%d failures\n", expect::failures);
    return expect::failures != 0;
}
