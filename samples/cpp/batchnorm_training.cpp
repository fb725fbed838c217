/* SPDX-License-Identifier: Apache-2.0 */
/* A training step of batch norm: forward with running statistics, then its gradients; compared with sums in double. */
#include <cmath>
#include <iostream>
#include <weft/weft.hpp>

constexpr int N = 4, C = 3, HW = 6, COUNT = N * HW;
constexpr float EPSILON = 1e-3f, MOMENTUM = 0.1f;

static std::vector<float> x(N * C * HW), dy(N * C * HW), y(N * C * HW), dx(N * C * HW);
static std::vector<float> scale(C), bias(C), mean(C), inv(C), dscale(C), dbias(C);
static std::vector<float> old_mean(C, 0.5f), old_var(C, 2), new_mean(C), new_var(C);

static int at(int channel, int i) { return (i / HW * C + channel) * HW + i % HW; }

/** The largest difference in the results of one channel. */
static double error_of_channel(int c) {
    double sum = 0, squares = 0, sum_dy = 0, sum_dy_x = 0, worst = 0;
    for (int i = 0; i < COUNT; i++)
        sum += x[at(c, i)];
    for (int i = 0; i < COUNT; i++)
        squares += std::pow(x[at(c, i)] - sum / COUNT, 2);
    const double center = sum / COUNT, inverse = 1 / std::sqrt(squares / COUNT + EPSILON);
    auto see = [&worst](double got, double expected) { worst = std::fmax(worst, std::fabs(got - expected)); };
    for (int i = 0; i < COUNT; i++) {
        const double normed = (x[at(c, i)] - center) * inverse;
        sum_dy += dy[at(c, i)], sum_dy_x += dy[at(c, i)] * normed;
        see(y[at(c, i)], normed * scale[c] + bias[c]);
    }
    for (int i = 0; i < COUNT; i++) {
        const double normed = (x[at(c, i)] - center) * inverse;
        see(dx[at(c, i)], scale[c] * inverse * (dy[at(c, i)] - sum_dy / COUNT - normed * sum_dy_x / COUNT));
    }
    see(mean[c], center), see(inv[c], inverse), see(dscale[c], sum_dy_x), see(dbias[c], sum_dy);
    see(new_mean[c], (1 - MOMENTUM) * old_mean[c] + MOMENTUM * center);
    see(new_var[c], (1 - MOMENTUM) * old_var[c] + MOMENTUM * squares / (COUNT - 1)); /* unbiased, as in cuDNN */
    return worst;
}

static void forward(weftHandle_t handle) {
    weft::Graph g(weft::DataType_t::FLOAT);
    auto X = g.tensor({N, C, 2, HW / 2}, "x"), S = g.tensor({1, C, 1, 1}, "scale"), B = g.tensor({1, C, 1, 1}, "bias");
    auto old_m = g.tensor({1, C, 1, 1}, "running mean"), old_v = g.tensor({1, C, 1, 1}, "running variance");
    auto options = weft::Batchnorm_attributes().set_epsilon(EPSILON).set_previous_running_stats(old_m, old_v, MOMENTUM);
    auto [Y, M, I, next_m, next_v] = g.batchnorm(X, S, B, options);
    for (auto &each : {Y, M, I, next_m, next_v})
        each->set_output(true);
    g.build(handle).or_throw();
    weft::Graph::Pointers memory = {
        {X, x.data()}, {S, scale.data()}, {B, bias.data()}, {old_m, old_mean.data()},  {old_v, old_var.data()},
        {Y, y.data()}, {M, mean.data()},  {I, inv.data()},  {next_m, new_mean.data()}, {next_v, new_var.data()}};
    g.execute(memory).or_throw();
}

static void backward(weftHandle_t handle) {
    weft::Graph g(weft::DataType_t::FLOAT);
    auto DY = g.tensor({N, C, 2, HW / 2}, "dy"), X = g.tensor({N, C, 2, HW / 2}, "x");
    auto S = g.tensor({1, C, 1, 1}, "scale"), M = g.tensor({1, C, 1, 1}, "mean"), I = g.tensor({1, C, 1, 1}, "inv");
    auto options = weft::Batchnorm_backward_attributes().set_saved_mean_and_inv_variance(M, I);
    auto [DX, DS, DB] = g.batchnorm_backward(DY, X, S, options);
    for (auto &each : {DX, DS, DB})
        each->set_output(true);
    DX->set_dim({N, C, 2, HW / 2}).set_stride({C * HW, HW, HW / 2, 1}); /* by default, channels are last */
    g.build(handle).or_throw();
    weft::Graph::Pointers memory = {{DY, dy.data()}, {X, x.data()},   {S, scale.data()},   {M, mean.data()},
                                    {I, inv.data()}, {DX, dx.data()}, {DS, dscale.data()}, {DB, dbias.data()}};
    g.execute(memory).or_throw();
}

int main() try {
    for (int i = 0; i < N * C * HW; i++)
        x[i] = std::sin(0.9f * i) + 0.1f * (i % 3), dy[i] = std::cos(0.4f * i);
    for (int c = 0; c < C; c++)
        scale[c] = 1 + 0.5f * c, bias[c] = 0.25f * c;
    weft::Handle cpu(WEFT_DEVICE_CPU); /* the device of the arrays */
    forward(cpu);
    backward(cpu);
    double worst = 0;
    for (int c = 0; c < C; c++)
        worst = std::fmax(worst, error_of_channel(c));
    std::cout << "largest error: " << worst << '\n';
    return worst < 1e-4 ? 0 : 1;
} catch (const weft::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
