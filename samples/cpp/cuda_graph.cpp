/* SPDX-License-Identifier: Apache-2.0 */
/* Captures a plan into a CUDA graph, and launches the graph on other numbers. The program loads the driver's
   functions, so it needs no CUDA headers; with them, call cudaStreamBeginCapture() etc. Without a GPU it prints a
   message. */
#include <cmath>
#include <dlfcn.h>
#include <iostream>
#include <weft/weft.hpp>

constexpr int COUNT = 1000;

static void *driver() {
    const char *named = std::getenv("WEFT_LIBCUDA");
    static void *library = dlopen(named ? named : "libcuda.so.1", RTLD_NOW);
    return library;
}

/** Calls a function of the driver, in the version of CUDA 12.0. */
template <class... Arguments> static void cuda(const char *name, Arguments... arguments) {
    using find_t = int (*)(const char *, void **, int, std::uint64_t, int *);
    auto find = reinterpret_cast<find_t>(dlsym(driver(), "cuGetProcAddress_v2"));
    void *address = nullptr;
    int found = 0, failed = find ? find(name, &address, 12000, 1, &found) : -1;
    if (failed == 0)
        failed = reinterpret_cast<int (*)(Arguments...)>(address)(arguments...);
    if (failed)
        throw std::runtime_error(std::string(name) + " returned " + std::to_string(failed));
}

/** Device memory. */
struct Floats {
    Floats(weftHandle_t device) : handle(device) {
        if (weftAllocate(handle, bytes, &address) != WEFT_STATUS_SUCCESS)
            throw std::runtime_error("no memory on the device");
    }
    ~Floats() { weftFree(handle, address); }
    weftHandle_t handle;
    std::size_t bytes = COUNT * sizeof(float);
    void *address = nullptr;
};

int main() try {
    weft::Handle gpu(WEFT_DEVICE_CUDA);
    if (gpu.status().is_bad()) {
        std::cout << "nothing to capture: " << gpu.status().get_message() << '\n';
        return 0;
    }
    weft::Graph g(weft::DataType_t::FLOAT);
    auto x = g.tensor({COUNT}, "x"), y = g.sqrt(g.add(g.mul(x, x), 1.0f));
    g.build(gpu).or_throw();
    Floats in(gpu), out(gpu);

    int device = 0;
    void *context = nullptr, *stream = nullptr, *graph = nullptr, *executable = nullptr;
    cuda("cuDeviceGet", &device, 0);
    cuda("cuDevicePrimaryCtxRetain", &context, device);
    cuda("cuCtxPushCurrent", context);
    cuda("cuStreamCreate", &stream, 1u);
    weftSetStream(gpu, stream);
    std::vector<float> numbers(COUNT), result(COUNT);
    void *workspace = nullptr;
    weftAllocate(gpu, static_cast<std::size_t>(g.get_workspace_size()), &workspace);
    cuda("cuStreamBeginCapture", stream, 0);
    g.execute(gpu, {{x, in.address}, {y, out.address}}, workspace).or_throw();
    cuda("cuStreamEndCapture", stream, &graph);
    cuda("cuGraphInstantiateWithFlags", &executable, graph, std::uint64_t{0});

    double worst = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++)
            numbers[i] = std::sin(0.1f * static_cast<float>(i + round));
        weftCopy(gpu, in.address, numbers.data(), in.bytes, stream);
        cuda("cuGraphLaunch", executable, stream);
        weftCopy(gpu, result.data(), out.address, out.bytes, stream);
        for (int i = 0; i < COUNT; i++)
            worst = std::fmax(worst, std::fabs(result[i] - std::sqrt(double(numbers[i]) * numbers[i] + 1)));
    }
    weftFree(gpu, workspace);
    std::cout << "largest error of 3 launches: " << worst << '\n';
    return worst < 1e-5 ? 0 : 1;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
