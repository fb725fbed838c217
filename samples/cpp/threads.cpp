/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one plan on several threads at once: each has its own memory, none waits for another. */
#include <cmath>
#include <iostream>
#include <thread>
#include <weft/weft.hpp>

constexpr int THREADS = 4, ROUNDS = 20, ROWS = 16, COLUMNS = 32;

struct Softmax {
    weft::Graph graph{weft::DataType_t::FLOAT};
    weft::Tensor x = graph.tensor({ROWS, COLUMNS}, "x"), y;

    explicit Softmax(weftHandle_t handle) {
        y = graph.softmax(x, weft::Softmax_attributes().set_axis(1))[0];
        y->set_output(true);
        graph.build(handle).or_throw();
    }
};

/** The largest error in a thread's runs, each on different numbers. */
static double work(const Softmax &softmax, weftHandle_t handle, int thread) {
    std::vector<float> x(ROWS * COLUMNS), y(ROWS * COLUMNS);
    std::vector<char> workspace(static_cast<std::size_t>(softmax.graph.get_workspace_size()));
    double worst = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (std::size_t i = 0; i < x.size(); i++)
            x[i] = std::sin(0.1f * static_cast<float>(i * (thread + 1) + round));
        weft::error_t error =
            softmax.graph.execute(handle, {{softmax.x, x.data()}, {softmax.y, y.data()}}, workspace.data());
        if (error.is_bad())
            return std::cerr << error.get_message() << '\n', 1;
        for (int row = 0; row < ROWS; row++) {
            double sum = 0;
            for (int c = 0; c < COLUMNS; c++)
                sum += std::exp(double(x[row * COLUMNS + c]));
            for (int c = 0; c < COLUMNS; c++)
                worst =
                    std::fmax(worst, std::fabs(y[row * COLUMNS + c] - std::exp(double(x[row * COLUMNS + c])) / sum));
        }
    }
    return worst;
}

int main() try {
    weft::Handle cpu(WEFT_DEVICE_CPU); /* the device of the arrays */
    const Softmax softmax(cpu);
    std::vector<double> errors(THREADS);
    std::vector<std::thread> threads;
    for (int i = 0; i < THREADS; i++)
        threads.emplace_back([&, i] { errors[i] = work(softmax, cpu, i); });
    for (std::thread &thread : threads)
        thread.join();
    double worst = *std::max_element(errors.begin(), errors.end());
    std::cout << "largest error of " << THREADS << " threads: " << worst << '\n';
    return worst < 1e-6 ? 0 : 1;
} catch (const weft::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
