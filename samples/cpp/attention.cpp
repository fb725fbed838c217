/* SPDX-License-Identifier: Apache-2.0 */
/* Causal scaled dot-product attention with the statistics for its gradients, compared with sums in double. */
#include <cmath>
#include <iostream>
#include <weft/weft.hpp>

constexpr int HEADS = 2, TOKENS = 8, WIDTH = 16;
constexpr int SIZE = HEADS * TOKENS * WIDTH;

static std::vector<float> q(SIZE), k(SIZE), v(SIZE), o(SIZE), stats(HEADS *TOKENS);

/** The largest difference in the results of one query. */
static double error_of_row(int head, int token, double scale) {
    const int first = head * TOKENS * WIDTH, row = first + token * WIDTH;
    double weights[TOKENS], sum = 0, worst = 0;
    for (int t = 0; t <= token; t++) {
        double score = 0;
        for (int d = 0; d < WIDTH; d++)
            score += double(q[row + d]) * k[first + t * WIDTH + d];
        sum += weights[t] = std::exp(scale * score);
    }
    for (int d = 0; d < WIDTH; d++) {
        double expected = 0;
        for (int t = 0; t <= token; t++)
            expected += weights[t] / sum * v[first + t * WIDTH + d];
        worst = std::fmax(worst, std::fabs(o[row + d] - expected));
    }
    return std::fmax(worst, std::fabs(stats[head * TOKENS + token] - std::log(sum)));
}

int main() try {
    for (int i = 0; i < SIZE; i++)
        q[i] = std::sin(0.3f * i), k[i] = std::cos(0.7f * i), v[i] = std::sin(1.1f * i);
    const float scale = 1 / std::sqrt(static_cast<float>(WIDTH));

    weft::Graph g(weft::DataType_t::FLOAT);
    const std::vector<std::int64_t> dims = {1, HEADS, TOKENS, WIDTH};
    auto Q = g.tensor(dims, "q"), K = g.tensor(dims, "k"), V = g.tensor(dims, "v");
    auto options = weft::SDPA_attributes().set_name("attention").set_causal_mask(true).set_attn_scale(scale);
    auto [O, Stats] = g.sdpa(Q, K, V, options.set_generate_stats(true));
    O->set_output(true);
    Stats->set_output(true).set_data_type(weft::DataType_t::FLOAT);

    weft::Handle cpu(WEFT_DEVICE_CPU); /* the device of the arrays */
    g.build(cpu).or_throw();
    g.execute({{Q, q.data()}, {K, k.data()}, {V, v.data()}, {O, o.data()}, {Stats, stats.data()}}).or_throw();
    double worst = 0;
    for (int i = 0; i < HEADS * TOKENS; i++)
        worst = std::fmax(worst, error_of_row(i / TOKENS, i % TOKENS, scale));
    std::cout << "largest error: " << worst << '\n';
    return worst < 1e-5 ? 0 : 1;
} catch (const weft::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
