/* SPDX-License-Identifier: Apache-2.0 */
/* Saves a plan to a file, loads it into an empty graph, and runs it by the tensors' uids. */
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <weft/weft.hpp>

constexpr int M = 5, K = 7, N = 3;
enum uids : std::int64_t { A = 10, B = 20, RESULT = 30 };

static void save(weftHandle_t handle, const std::string &path) {
    weft::Graph g(weft::DataType_t::FLOAT);
    auto a = g.tensor(weft::Tensor_attributes().set_name("a").set_dim({1, M, K}).set_uid(A));
    auto b = g.tensor(weft::Tensor_attributes().set_name("b").set_dim({1, K, N}).set_uid(B));
    g.tanh(g.matmul(a, b))->set_output(true).set_uid(RESULT);
    g.build(handle).or_throw();
    std::vector<std::uint8_t> data;
    g.serialize(data).or_throw();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char *>(data.data()), std::streamsize(data.size()));
}

static void load_and_run(weftHandle_t handle, const std::string &path, float *a, float *b, float *result) {
    std::ifstream file(path, std::ios::binary);
    std::vector<std::uint8_t> data{std::istreambuf_iterator<char>(file), {}};
    weft::Graph g;
    g.deserialize(handle, data).or_throw();
    std::vector<char> workspace(static_cast<std::size_t>(g.get_workspace_size()));
    g.execute(handle, {{A, a}, {B, b}, {RESULT, result}}, workspace.data()).or_throw();
}

int main() try {
    std::vector<float> a(M * K), b(K * N), result(M * N);
    for (std::size_t i = 0; i < a.size(); i++)
        a[i] = std::sin(0.5f * i);
    for (std::size_t i = 0; i < b.size(); i++)
        b[i] = std::cos(0.8f * i);
    weft::Handle cpu(WEFT_DEVICE_CPU); /* the device of the arrays */
    const std::string path = "matmul.weft";
    save(cpu, path);
    load_and_run(cpu, path, a.data(), b.data(), result.data());
    std::remove(path.c_str());
    double worst = 0;
    for (int i = 0; i < M * N; i++) {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += double(a[i / N * K + k]) * b[k * N + i % N];
        worst = std::fmax(worst, std::fabs(result[i] - std::tanh(sum)));
    }
    std::cout << "largest error: " << worst << '\n';
    return worst < 1e-5 ? 0 : 1;
} catch (const weft::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
