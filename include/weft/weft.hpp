/* SPDX-License-Identifier: Apache-2.0 */
/* weft.hpp: Weft for C++17 and newer, header only, over weft.h.
 *
 * Classes, methods and enumerations have the names of cuDNN's C++ frontend, so that a program that uses it is ported
 * with
 *
 *   namespace fe = weft::frontend;
 *
 * and by replacing cudnn by weft in its calls of the C API. A minimal program, with inferred shapes and host memory:
 *
 *   weft::Graph g(weft::DataType_t::FLOAT);
 *   auto x = g.tensor({1, 16, 32, 32}), w = g.tensor({16, 16, 3, 3});
 *   auto y = g.relu(g.conv_fprop(x, w));
 *   g.build().or_throw();
 *   g.execute({{x, image}, {w, filters}, {y, result}}).or_throw();
 *
 * Errors are values: methods that can fail return error_t, whose message contains the location, the rule, the expected
 * and the actual value, and the fix; or_throw() throws it as weft::Error. Methods that add operations return tensors;
 * validate() or build() reports their errors.
 *
 * Threads: a graph belongs to one thread until it is built; then execute() may run on many at once, each call with its
 * own workspace. docs/cpp.md is the manual. */
#ifndef WEFT_HPP
#define WEFT_HPP

#if __cplusplus < 201703L
#error "weft.hpp is C++17: compile with -std=c++17 or newer."
#endif

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "weft/weft.h"

struct CUstream_st;   /* cudaStream_t is a pointer to it */
struct __half;        /* of cuda_fp16.h */
struct __nv_bfloat16; /* of cuda_bf16.h */

/** The stream of a handle, as CUDA's headers declare streams. */
inline weftStatus_t weftGetStream(weftHandle_t handle, CUstream_st **stream) {
    weftStream_t found = nullptr;
    const weftStatus_t status = weftGetStream(handle, &found);
    if (status == WEFT_STATUS_SUCCESS)
        *stream = static_cast<CUstream_st *>(found);
    return status;
}

/** The CUDA version that ported programs compare with, MAJOR * 1000 + MINOR * 10: the newest one whose types and chips
    Weft supports. It is independent of the driver's CUDA version. */
inline std::size_t weftGetCudartVersion() { return 13000; }

/** The version of cuDNN whose rules weft.hpp follows, MAJOR * 10000 + MINOR * 100 + PATCHLEVEL. Ported programs compare
    with it instead of CUDNN_VERSION and cudnnGetVersion(). weftGetVersion() returns the version of Weft. */
#define WEFT_CUDNN_VERSION 92800
inline std::size_t weftGetCudnnVersion() { return WEFT_CUDNN_VERSION; }

/** The release of cuDNN's frontend whose names are used here, in the form of its macros. */
#define WEFT_FRONTEND_MAJOR_VERSION 1
#define WEFT_FRONTEND_MINOR_VERSION 32
#define WEFT_FRONTEND_PATCH_VERSION 0
#define WEFT_FRONTEND_VERSION                                                                                          \
    (WEFT_FRONTEND_MAJOR_VERSION * 10000 + WEFT_FRONTEND_MINOR_VERSION * 100 + WEFT_FRONTEND_PATCH_VERSION)

namespace weft::frontend {

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/** Categories of errors. */
enum class error_code_t {
    OK,
    ATTRIBUTE_NOT_SET,
    SHAPE_DEDUCTION_FAILED,
    INVALID_TENSOR_NAME,
    INVALID_VARIANT_PACK,
    GRAPH_NOT_SUPPORTED,
    GRAPH_EXECUTION_PLAN_CREATION_FAILED,
    GRAPH_EXECUTION_FAILED,
    HEURISTIC_QUERY_FAILED,
    UNSUPPORTED_GRAPH_FORMAT,
    CUDA_API_FAILED,
    CUDNN_BACKEND_API_FAILED,
    INVALID_CUDA_DEVICE,
    HANDLE_ERROR,
    INVALID_VALUE,
    NVRTC_COMPILATION_FAILED,
};

class Error;

/** The result of a call: a code, and a message unless it is OK. */
struct [[nodiscard]] error_object {
    error_code_t code = error_code_t::OK;              /**< Category of the error. */
    std::string err_msg = {};                          /**< Where, the rule, expected and actual value, the fix. */
    weftStatus_t backend_status = WEFT_STATUS_SUCCESS; /**< Status of the C API, if it was called. */

    bool is_good() const { return code == error_code_t::OK; }
    bool is_bad() const { return !is_good(); }
    error_code_t get_code() const { return code; }
    const std::string &get_message() const { return err_msg; }
    /** Throws weft::Error on failure; terminates the process if exceptions are disabled. */
    void or_throw() const;
    bool operator==(error_code_t other) const { return code == other; }
    bool operator!=(error_code_t other) const { return code != other; }
};
using error_t = error_object;

/** The exception that or_throw() throws. */
class Error : public std::runtime_error {
  public:
    explicit Error(error_t error) : std::runtime_error(error.err_msg), error_(std::move(error)) {}
    const error_t &error() const { return error_; }

  private:
    error_t error_;
};

inline void error_object::or_throw() const {
    if (is_good())
        return;
#if defined(__cpp_exceptions)
    throw Error(*this);
#else
    std::abort();
#endif
}

#define WEFT_HPP_TRY(call)                                                                                             \
    do {                                                                                                               \
        if (auto failed_ = (call); failed_.is_bad())                                                                   \
            return failed_;                                                                                            \
    } while (false)

enum class DataType_t : int;

namespace graph {
class Tensor_attributes;
class Pointwise_attributes;
class Graph;
} // namespace graph

/** A tensor of a graph. */
using Tensor = std::shared_ptr<graph::Tensor_attributes>;

namespace detail {

/** The error of a status; other: the code for statuses without a code of their own. */
inline error_t error_of(weftStatus_t status, error_code_t other) {
    if (status == WEFT_STATUS_SUCCESS)
        return {};
    char text[8192];
    weftGetLastErrorString(text, sizeof text);
    if (status == WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED)
        other = error_code_t::NVRTC_COMPILATION_FAILED;
    else if (status >= WEFT_STATUS_NOT_SUPPORTED && status < WEFT_STATUS_INTERNAL_ERROR)
        other = error_code_t::GRAPH_NOT_SUPPORTED;
    else if (status == WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH && other == error_code_t::INVALID_VALUE)
        other = error_code_t::SHAPE_DEDUCTION_FAILED;
    else if (status >= WEFT_STATUS_EXECUTION_FAILED && status < WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT)
        other = error_code_t::GRAPH_EXECUTION_FAILED;
    return {other, text[0] ? text : weftGetErrorString(status), status};
}

inline std::string list_text(const std::vector<std::int64_t> &values) {
    std::string text = "[";
    for (std::size_t i = 0; i < values.size(); i++)
        text += (i ? ", " : "") + std::to_string(values[i]);
    return text + "]";
}

} // namespace detail

/* ---- Handles and descriptors of the C API ------------------------------------------------------------------------ */

/** Owns an opened device and closes it. If the device could not be opened the handle is null, and status() has the
    error. */
class Handle {
  public:
    /** Opens the default device: the first NVIDIA GPU that Weft can use, otherwise the CPU. */
    Handle() : status_(detail::error_of(weftCreate(&raw_), error_code_t::HANDLE_ERROR)) {}
    /** Opens a device of a kind. ordinal: 0-based index among devices of that kind. */
    explicit Handle(weftDeviceKind_t kind, std::int32_t ordinal = 0)
        : status_(detail::error_of(weftCreateForDevice(&raw_, kind, ordinal), error_code_t::HANDLE_ERROR)) {}
    Handle(Handle &&other) noexcept : raw_(std::exchange(other.raw_, nullptr)), status_(std::move(other.status_)) {}
    Handle &operator=(Handle &&other) noexcept {
        std::swap(raw_, other.raw_);
        std::swap(status_, other.status_);
        return *this;
    }
    ~Handle() { weftDestroy(raw_); }

    operator weftHandle_t() const { return raw_; }
    weftHandle_t get() const { return raw_; }
    const error_t &status() const { return status_; }

  private:
    weftHandle_t raw_ = nullptr;
    error_t status_;
};

namespace detail {

/** The handle for graphs that are built without one. */
inline weftHandle_t default_handle(error_t &status) {
    static const Handle handle;
    status = handle.status();
    return handle;
}

/** Owns a descriptor of the C API. After a failure, setters have no effect; finalize() returns the first error. */
class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(weftBackendDescriptorType_t kind) {
        weftBackendDescriptor_t made = nullptr;
        note(weftBackendCreateDescriptor(kind, &made));
        held_.reset(made, [](weftBackendDescriptor_t old) { weftBackendDestroyDescriptor(old); });
    }

    weftBackendDescriptor_t get() const { return held_.get(); }
    explicit operator bool() const { return held_ != nullptr; }

    Descriptor &set(weftBackendAttributeName_t name, weftBackendAttributeType_t type, std::size_t count,
                    const void *elements) {
        if (failed_.is_good())
            note(weftBackendSetAttribute(get(), name, type, static_cast<std::int64_t>(count), elements));
        return *this;
    }
    template <class T>
    Descriptor &set(weftBackendAttributeName_t name, weftBackendAttributeType_t type, const T &value) {
        return set(name, type, 1, &value);
    }
    template <class T>
    Descriptor &set(weftBackendAttributeName_t name, weftBackendAttributeType_t type, const std::vector<T> &values) {
        return set(name, type, values.size(), values.data());
    }
    Descriptor &set_text(weftBackendAttributeName_t name, const std::string &text) {
        return set(name, WEFT_TYPE_CHAR, text.size(), text.data());
    }
    Descriptor &link(weftBackendAttributeName_t name, const Descriptor &other) {
        return set(name, WEFT_TYPE_BACKEND_DESCRIPTOR, other.get());
    }
    Descriptor &link(weftBackendAttributeName_t name, const std::vector<Descriptor> &others) {
        std::vector<weftBackendDescriptor_t> values;
        for (const Descriptor &other : others)
            values.push_back(other.get());
        return set(name, WEFT_TYPE_BACKEND_DESCRIPTOR, values);
    }
    error_t finalize(error_code_t code) {
        if (failed_.is_good())
            note(weftBackendFinalize(get()), code);
        return failed_;
    }

    template <class T> std::vector<T> get_all(weftBackendAttributeName_t name, weftBackendAttributeType_t type) const {
        std::int64_t count = 0;
        if (weftBackendGetAttribute(get(), name, type, 0, &count, nullptr) != WEFT_STATUS_SUCCESS)
            return {};
        std::vector<T> values(static_cast<std::size_t>(count));
        if (weftBackendGetAttribute(get(), name, type, count, &count, values.data()) != WEFT_STATUS_SUCCESS)
            return {};
        return values;
    }
    template <class T> T get_one(weftBackendAttributeName_t name, weftBackendAttributeType_t type, T other = {}) const {
        std::vector<T> values = get_all<T>(name, type);
        return values.empty() ? other : values.front();
    }
    std::int64_t get_int(weftBackendAttributeName_t name) const { return get_one<std::int64_t>(name, WEFT_TYPE_INT64); }
    std::string get_text(weftBackendAttributeName_t name) const {
        std::vector<char> text = get_all<char>(name, WEFT_TYPE_CHAR);
        return std::string(text.begin(), std::find(text.begin(), text.end(), '\0'));
    }
    std::vector<Descriptor> get_descriptors(weftBackendAttributeName_t name, weftBackendDescriptorType_t kind) const {
        std::int64_t count = 0;
        weftBackendGetAttribute(get(), name, WEFT_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr);
        std::vector<Descriptor> made;
        std::vector<weftBackendDescriptor_t> raw;
        for (std::int64_t i = 0; i < count; i++)
            raw.push_back(made.emplace_back(kind).get());
        if (weftBackendGetAttribute(get(), name, WEFT_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()) !=
            WEFT_STATUS_SUCCESS)
            return {};
        return made;
    }

  private:
    void note(weftStatus_t status, error_code_t code = error_code_t::INVALID_VALUE) {
        failed_ = error_of(status, code);
    }

    std::shared_ptr<struct weftDescriptor> held_;
    error_t failed_;
};

} // namespace detail

/* ---- Parts of operations ----------------------------------------------------------------------------------------- */

/** An operand: a tensor, nothing (nullptr), or a number, which becomes a constant of the graph with the type of the
    other operands. */
class Operand {
  public:
    Operand(std::nullptr_t = nullptr) {}
    Operand(Tensor tensor) : tensor_(std::move(tensor)) {}
    template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
    Operand(Number number) : Operand(static_cast<double>(number), std::is_integral_v<Number>) {}

    const Tensor &tensor() const { return tensor_; }

  private:
    inline Operand(double number, bool is_integer);

    Tensor tensor_;
};

namespace detail {

/** An operand of an operation: its attribute, its name in messages, and its value. */
struct Input {
    Input(weftBackendAttributeName_t attribute, const char *word, const Operand &operand, bool is_needed)
        : name(attribute), key(word), tensors{operand.tensor()}, needed(is_needed) {}
    Input(weftBackendAttributeName_t attribute, const char *word, std::vector<Tensor> list, bool is_needed)
        : name(attribute), key(word), tensors(std::move(list)), needed(is_needed) {}

    weftBackendAttributeName_t name;
    const char *key;
    std::vector<Tensor> tensors;
    bool needed;
};

/** A result of an operation. */
struct Result {
    weftBackendAttributeName_t name;
    const char *key;
    bool is_inferred; /**< The library infers its type: a statistic or an index. */
    bool is_computed;
    bool needed;
    Tensor tensor = {};
};

/** An option of an operation: the elements of an attribute. */
struct Setting {
    weftBackendAttributeName_t name;
    weftBackendAttributeType_t type;
    std::size_t count;
    std::vector<unsigned char> bytes;
};

class Operations;
class Recorder;
class Lowering;
class Saving;
struct Node;

/** State of the attributes of any operation. */
class Settings {
  public:
    const std::string &get_name() const { return name_; }

  protected:
    template <class T>
    using stored_t = std::conditional_t<std::is_enum_v<T>, int, std::conditional_t<std::is_same_v<T, bool>, char, T>>;

    bool has(weftBackendAttributeName_t name) const {
        auto is_it = [name](const auto &each) { return each.name == name; };
        return std::any_of(settings_.begin(), settings_.end(), is_it) ||
               std::any_of(inputs_.begin(), inputs_.end(), is_it);
    }
    /** The elements of an option; empty if it was not set. */
    template <class T> std::vector<T> get_list(weftBackendAttributeName_t name) const {
        std::vector<T> found;
        for (const Setting &setting : settings_)
            for (std::size_t i = 0; setting.name == name && i < setting.count; i++)
                found.push_back(element<T>(setting, i));
        return found;
    }
    /** The value of an option with one element. */
    template <class T> std::optional<T> get_value(weftBackendAttributeName_t name) const {
        const std::vector<T> found = get_list<T>(name);
        return found.empty() ? std::nullopt : std::optional<T>(found.front());
    }
    template <class T> static T element(const Setting &setting, std::size_t i) {
        if constexpr (std::is_enum_v<T>)
            if (setting.type == WEFT_TYPE_INT64)
                return static_cast<T>(element<std::int64_t>(setting, i));
        stored_t<T> value{};
        std::memcpy(&value, &setting.bytes[i * sizeof value], sizeof value);
        return static_cast<T>(value);
    }
    template <class List> static void drop(List &list, weftBackendAttributeName_t name) {
        list.erase(std::remove_if(list.begin(), list.end(), [name](const auto &each) { return each.name == name; }),
                   list.end());
    }
    template <class T>
    void put(weftBackendAttributeName_t name, weftBackendAttributeType_t type, const std::vector<T> &values) {
        drop(settings_, name);
        std::vector<stored_t<T>> stored;
        for (T value : values)
            stored.push_back(static_cast<stored_t<T>>(value));
        Setting made{name, type, stored.size(), std::vector<unsigned char>(stored.size() * sizeof(stored_t<T>))};
        if (!stored.empty())
            std::memcpy(made.bytes.data(), stored.data(), made.bytes.size());
        settings_.push_back(std::move(made));
    }
    template <class T> void put(weftBackendAttributeName_t name, weftBackendAttributeType_t type, T value) {
        if constexpr (std::is_enum_v<T>)
            if (static_cast<int>(value) == -1) /* NOT_SET */
                return drop(settings_, name);
        put(name, type, std::vector<T>{value});
    }
    void give(weftBackendAttributeName_t name, const char *key, const Operand &operand) {
        drop(inputs_, name);
        if (operand.tensor())
            inputs_.emplace_back(name, key, operand, false);
    }
    void give(weftBackendAttributeName_t name, const char *key, const std::vector<Tensor> &list) {
        drop(inputs_, name);
        if (!list.empty())
            inputs_.emplace_back(name, key, list, false);
    }
    void receive(weftBackendAttributeName_t name, const char *key, const Tensor &tensor) {
        drop(results_, name);
        if (tensor)
            results_.push_back({name, key, false, true, false, tensor});
    }
    void keep_statistics(bool are_kept) { has_statistics_ = are_kept; }
    bool has_statistics() const { return has_statistics_; }
    void shape_result(const std::vector<std::int64_t> &dims, const std::vector<std::int64_t> &strides) {
        if (!dims.empty())
            dims_ = dims;
        if (!strides.empty())
            strides_ = strides;
    }
    void refuse(const std::string &what) { refusal_ = what; }

    std::string name_, refusal_;
    DataType_t compute_type_ = static_cast<DataType_t>(-1);
    bool has_statistics_ = true;
    bool has_groups_ = false; /**< The operand has groups of rows. */
    std::vector<std::int64_t> dims_, strides_;
    std::vector<Setting> settings_;
    std::vector<Input> inputs_;
    std::vector<Result> results_;

    friend class Operations;
    friend class Recorder;
    friend class Lowering;
    friend class Saving;
    friend struct Node;
    friend class graph::Graph;
};

/** The base of all attribute classes; setters return the object itself. */
template <class Self> class Attributes : public Settings {
  public:
    /** The operation's name in messages. */
    Self &set_name(const std::string &name) {
        this->name_ = name;
        return self();
    }
    /** The compute type; default the graph's. */
    Self &set_compute_data_type(DataType_t type) {
        this->compute_type_ = type;
        return self();
    }

  protected:
    Self &self() { return static_cast<Self &>(*this); }
};

/** Pointwise operations on the scores of attention, which become part of it. */
struct Part {
    std::vector<Node> nodes;
    Tensor queries, keys, scores, result;
    Tensor slope, slope_result; /**< The gradients of result and scores, if the user defines them. */
    bool is_paged = false;
    std::int64_t paged_keys = 0;
};

/** An operation as the user added it. */
struct Node {
    std::string method;
    weftBackendDescriptorType_t kind;
    Settings settings;
    std::optional<weftBackendAttributeName_t> compute_type;
    std::vector<Input> inputs;
    std::vector<Result> results;
    std::shared_ptr<Part> part = {};

    std::string label() const { return method + " '" + settings.name_ + "'"; }
};

/** Stores operations in the order in which they are added. */
class Recorder {
  protected:
    template <class Any>
    std::vector<Tensor> record(const char *method, weftBackendDescriptorType_t kind, const Any &attributes,
                               std::optional<weftBackendAttributeName_t> compute_type, std::vector<Input> inputs,
                               std::vector<Result> results) {
        return keep({method, kind, attributes, compute_type, std::move(inputs), std::move(results)});
    }
    inline std::vector<Tensor> keep(Node node);
    inline Tensor record_pointwise(const char *method, std::vector<Operand> operands,
                                   const graph::Pointwise_attributes &attributes);
    template <std::size_t N> static std::array<Tensor, N> to_array(const std::vector<Tensor> &made) {
        std::array<Tensor, N> found;
        std::copy_n(made.begin(), N, found.begin());
        return found;
    }

    std::vector<Node> nodes_;
    std::shared_ptr<char> mark_ = std::make_shared<char>(); /**< Identifies the graph that created a tensor. */
};

} // namespace detail
} // namespace weft::frontend

#include "weft/weft_operations.hpp"

namespace weft::frontend {

namespace detail {

/** weftGetCudnnVersion() under the names of cuDNN's frontend: of the library, and of the header. */
inline std::size_t get_backend_version() { return weftGetCudnnVersion(); }
inline std::size_t get_compiled_version() { return WEFT_CUDNN_VERSION; }
inline std::string get_backend_version_string() {
    const std::size_t version = get_backend_version();
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
}

/** Bits of an element in memory; 0 for types that have no storage. */
inline std::size_t get_element_size_in_bits(DataType_t type) {
    switch (type) {
    case DataType_t::DOUBLE:
    case DataType_t::INT64:
        return 64;
    case DataType_t::FLOAT:
    case DataType_t::INT32:
    case DataType_t::UINT32:
        return 32;
    case DataType_t::HALF:
    case DataType_t::BFLOAT16:
        return 16;
    case DataType_t::INT8:
    case DataType_t::UINT8:
    case DataType_t::BOOLEAN:
    case DataType_t::BYTE_BOOLEAN:
    case DataType_t::FP8_E4M3:
    case DataType_t::FP8_E5M2:
    case DataType_t::FP8_E8M0:
        return 8;
    case DataType_t::FP4_E2M1:
    case DataType_t::INT4:
    case DataType_t::UINT4:
        return 4;
    default:
        return 0;
    }
}
/** Bytes of an element; 1 for elements of 4 bits, as in cuDNN's frontend. */
inline std::int64_t get_data_type_size(DataType_t type) {
    return static_cast<std::int64_t>((get_element_size_in_bits(type) + 7) / 8);
}

} // namespace detail

using detail::get_element_size_in_bits;

namespace detail {

/** Types of numbers that a scalar can be created from. */
template <class Number>
inline constexpr bool is_scalar_v =
    std::is_arithmetic_v<Number> || std::is_same_v<Number, __half> || std::is_same_v<Number, __nv_bfloat16>;

inline float float_of_bits(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline float float_of_half(std::uint16_t bits) {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinite, or NaN */
        return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    const float value = magnitude >= 0x400u ? float_of_bits((magnitude << 13) + (112u << 23))
                                            : static_cast<float>(magnitude) / 16777216.0f;
    return sign ? -value : value;
}

} // namespace detail

/** The plans that build_plans() builds. */
enum class BuildPlanPolicy_t {
    HEURISTICS_CHOICE, /**< The first one that can be built. */
    ALL,               /**< All that can be built. */
};

/** How attention is computed: accepted, but Weft makes its own choice. */
enum class AttentionImplementation_t { AUTO, COMPOSITE, UNIFIED };

/** A tuning parameter of an engine, and its legal values. */
struct Knob {
    KnobType_t type;
    std::int64_t maxValue, minValue, stride;
};

namespace graph {

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/** When the value of a scalar is known. */
enum class ScalarType {
    RUNTIME_PARAM,      /**< At execution; the given value is a default. */
    COMPILE_TIME_CONST, /**< When the plan is built. */
};

/** Properties of a tensor. All of them are optional for an operation's result; an input needs dims and a data type. */
class Tensor_attributes {
  public:
    using uid_t = std::int64_t;
    /** A scalar; HALF and BFLOAT16 are returned as floats. */
    using pass_by_values_t = std::variant<std::int64_t, std::int32_t, float, double>;
    static constexpr std::int64_t default_alignment = 16;

    Tensor_attributes() = default;
    /** A scalar: its value is part of the plan, or a default for variant packs that do not override it. */
    template <class Number, class = std::enable_if_t<detail::is_scalar_v<Number>>>
    explicit Tensor_attributes(Number value, ScalarType kind = ScalarType::COMPILE_TIME_CONST) {
        set_compile_time_constant(value);
        by_value_ = is_runtime_ = kind == ScalarType::RUNTIME_PARAM;
    }

    /** The name in messages. */
    Tensor_attributes &set_name(const std::string &name) {
        name_ = name;
        return *this;
    }
    /** Type of an element; default the graph's, or inferred. */
    Tensor_attributes &set_data_type(DataType_t type) {
        type_ = type;
        return *this;
    }
    /** Extents, outermost first. */
    Tensor_attributes &set_dim(const std::vector<std::int64_t> &dims) {
        dims_ = dims;
        return *this;
    }
    /** Distances in elements between adjacent elements along each dimension; default packed. */
    Tensor_attributes &set_stride(const std::vector<std::int64_t> &strides) {
        strides_ = strides;
        return *this;
    }
    /** True for an intermediate result, which has no memory. */
    Tensor_attributes &set_is_virtual(bool is_virtual) {
        virtual_ = is_virtual;
        return *this;
    }
    /** True for a result that gets memory. */
    Tensor_attributes &set_output(bool is_output) { return set_is_virtual(!is_output); }
    /** True if its only element is read from host memory at execution. */
    Tensor_attributes &set_is_pass_by_value(bool is_by_value) {
        by_value_ = is_by_value;
        return *this;
    }
    /** A scalar whose value is part of the plan. */
    template <class Number> Tensor_attributes &set_compile_time_constant(Number value) {
        static_assert(sizeof value <= 8, "a scalar of at most 8 bytes");
        constant_.emplace();
        std::memcpy(constant_->data(), &value, sizeof value);
        if (dims_.empty())
            dims_ = {1}, strides_ = {1};
        if constexpr (detail::is_scalar_v<Number>)
            type_ = type_of<Number>();
        by_value_ = is_runtime_ = false;
        return *this;
    }
    Tensor_attributes &set_compile_time_constant(const pass_by_values_t &value) {
        return std::visit([this](auto number) -> Tensor_attributes & { return set_compile_time_constant(number); },
                          value);
    }
    /** The opposite: a scalar whose value is read from host memory at execution. */
    Tensor_attributes &set_as_runtime_parameter() {
        constant_.reset();
        is_runtime_ = false;
        return set_is_pass_by_value(true);
    }
    /** The number of this tensor in variant packs; default the next free one. */
    Tensor_attributes &set_uid(uid_t uid) {
        uid_ = uid;
        return *this;
    }
    Tensor_attributes &clear_uid() {
        uid_.reset();
        return *this;
    }
    /** Alignment of addresses in bytes; default 16. */
    Tensor_attributes &set_alignment(std::int64_t bytes) {
        alignment_ = bytes;
        return *this;
    }
    /** `count` elements of a dimension are adjacent in memory, as one vector. */
    Tensor_attributes &set_vector_count_and_dimension(std::int64_t count, std::int64_t dimension) {
        vector_ = {count, dimension};
        return *this;
    }
    Tensor_attributes &set_reordering_type(TensorReordering_t type) {
        reordering_ = type;
        return *this;
    }
    /** Element offset of each batch entry. */
    Tensor_attributes &set_ragged_offset(const Tensor &offset) {
        ragged_offset_ = offset;
        return *this;
    }
    /** Number of elements per unit of the ragged offsets; default 1. */
    Tensor_attributes &set_ragged_offset_multiplier(std::int64_t elements) {
        ragged_multiplier_ = elements;
        return *this;
    }

    const std::string &get_name() const { return name_; }
    /** As set by the user, otherwise as inferred by validate(). */
    DataType_t get_data_type() const { return type_ == DataType_t::NOT_SET ? inferred_type_ : type_; }
    const std::vector<std::int64_t> &get_dim() const { return dims_.empty() ? inferred_dims_ : dims_; }
    const std::vector<std::int64_t> &get_stride() const { return strides_.empty() ? inferred_strides_ : strides_; }
    /** Elements. */
    std::int64_t get_volume() const {
        std::int64_t volume = 1;
        for (std::int64_t extent : get_dim())
            volume *= extent;
        return volume;
    }
    bool get_is_virtual() const { return is_virtual(); }
    bool get_is_pass_by_value() const { return by_value_ || constant_; }
    bool has_uid() const { return uid_.has_value(); }
    uid_t get_uid() const { return uid_.value_or(0); }
    std::int64_t get_alignment() const { return alignment_ ? alignment_ : default_alignment; }
    std::int64_t get_vector_count() const { return vector_.first; }
    std::int64_t get_vector_dimension() const { return vector_.second; }
    TensorReordering_t get_reordering_type() const { return reordering_; }
    Tensor get_ragged_offset() const { return ragged_offset_; }
    std::int64_t get_ragged_offset_multiplier() const { return ragged_multiplier_; }
    bool has_ragged_offset_multiplier() const { return ragged_multiplier_ != 1; }
    bool get_has_compile_time_constant() const { return constant_ && !is_runtime_; }
    std::optional<pass_by_values_t> get_compile_time_constant() const {
        return get_has_compile_time_constant() ? value() : std::nullopt;
    }
    /** The default value, for variant packs that do not override it. */
    std::optional<pass_by_values_t> get_pass_by_value() const { return is_runtime_ ? value() : std::nullopt; }

  private:
    template <class Number> static constexpr DataType_t type_of() {
        static_assert(detail::is_scalar_v<Number> && sizeof(Number) <= 8, "a scalar of 8 to 64 bits");
        if constexpr (std::is_same_v<Number, bool>)
            return DataType_t::BYTE_BOOLEAN;
        else if constexpr (std::is_same_v<Number, __half>)
            return DataType_t::HALF;
        else if constexpr (std::is_same_v<Number, __nv_bfloat16>)
            return DataType_t::BFLOAT16;
        else if constexpr (std::is_floating_point_v<Number>)
            return sizeof(Number) == 4 ? DataType_t::FLOAT : DataType_t::DOUBLE;
        else if constexpr (sizeof(Number) == 1)
            return std::is_signed_v<Number> ? DataType_t::INT8 : DataType_t::UINT8;
        else if constexpr (sizeof(Number) == 4)
            return std::is_signed_v<Number> ? DataType_t::INT32 : DataType_t::UINT32;
        else
            return DataType_t::INT64;
    }
    template <class Number> Number value_as() const {
        Number found;
        std::memcpy(&found, constant_->data(), sizeof found);
        return found;
    }
    inline std::optional<pass_by_values_t> value() const;
    bool is_virtual() const { return virtual_ ? *virtual_ : is_result() && !is_chosen_ && !is_given_; }
    bool is_result() const { return mark_ != nullptr; }
    /** True if strides are set, but dims are still to be inferred. */
    bool lacks_dims() const { return dims_.empty() && !strides_.empty(); }
    std::string label() const {
        std::string number = uid_ ? "uid " + std::to_string(*uid_) : "no uid yet";
        return name_.empty() ? "tensor of " + number : "tensor '" + name_ + "' (" + number + ")";
    }

    std::string name_;
    DataType_t type_ = DataType_t::NOT_SET, inferred_type_ = DataType_t::NOT_SET;
    std::vector<std::int64_t> dims_, strides_, inferred_dims_, inferred_strides_;
    std::optional<bool> virtual_;
    bool is_chosen_ = false; /**< An output because nothing reads it and the user declared no outputs. */
    bool is_given_ = false;  /**< A result that the user created and passed to the operation, for example with
                                  set_dbias(). */
    bool by_value_ = false;
    bool is_runtime_ = false; /**< The constant is a default that a variant pack may override. */
    std::optional<std::array<unsigned char, 8>> constant_;
    std::optional<double> number_; /**< A constant with the type of the other operands. */
    bool is_integer_ = false;      /**< The number was an integer. */
    std::optional<uid_t> uid_;
    std::int64_t alignment_ = 0;
    std::pair<std::int64_t, std::int64_t> vector_{1, -1};
    TensorReordering_t reordering_ = TensorReordering_t::NONE;
    Tensor ragged_offset_;
    std::int64_t ragged_multiplier_ = 1;
    std::shared_ptr<char> mark_; /**< Identifies the graph whose operation computes it. */

    friend class Graph;
    friend class weft::frontend::Operand;
    friend class detail::Lowering;
    friend class detail::Recorder;
    friend class detail::Saving;
};

/** The constant as a C++ value. */
inline std::optional<Tensor_attributes::pass_by_values_t> Tensor_attributes::value() const {
    switch (type_) {
    case DataType_t::INT64:
        return value_as<std::int64_t>();
    case DataType_t::INT32:
        return value_as<std::int32_t>();
    case DataType_t::INT8:
        return std::int32_t{value_as<std::int8_t>()};
    case DataType_t::DOUBLE:
        return value_as<double>();
    case DataType_t::FLOAT:
        return value_as<float>();
    case DataType_t::HALF:
        return detail::float_of_half(value_as<std::uint16_t>());
    case DataType_t::BFLOAT16:
        return detail::float_of_bits(std::uint32_t{value_as<std::uint16_t>()} << 16);
    case DataType_t::UINT32:
        return std::int64_t{value_as<std::uint32_t>()};
    default:
        return std::int32_t{value_as<std::uint8_t>()};
    }
}

} // namespace graph

inline Operand::Operand(double number, bool is_integer) : tensor_(std::make_shared<graph::Tensor_attributes>()) {
    tensor_->dims_ = tensor_->strides_ = {1};
    tensor_->number_ = number;
    tensor_->is_integer_ = is_integer;
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

/** A device to plan for, which need not be present. */
class DeviceProperties {
  public:
    DeviceProperties &set_device_id(std::int32_t id) {
        made_.set(WEFT_ATTR_DEVICEPROP_DEVICE_ID, WEFT_TYPE_INT32, id);
        made_.set(WEFT_ATTR_DEVICEPROP_KIND_EXT, WEFT_TYPE_INT64, std::int64_t{WEFT_DEVICE_CUDA});
        return *this;
    }
    DeviceProperties &set_handle(weftHandle_t handle) {
        made_.set(WEFT_ATTR_DEVICEPROP_HANDLE, WEFT_TYPE_HANDLE, handle);
        return *this;
    }
    error_t build() { return made_.finalize(error_code_t::INVALID_CUDA_DEVICE); }
    error_t serialize(std::vector<std::uint8_t> &data) const {
        data = made_.get_all<std::uint8_t>(WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, WEFT_TYPE_CHAR);
        if (data.empty())
            return {error_code_t::ATTRIBUTE_NOT_SET, "DeviceProperties: serialize() needs a built description, and "
                                                     "build() was not called. Call it first."};
        return {};
    }
    /** Reads the output of serialize(), and builds. */
    error_t deserialize(const std::vector<std::uint8_t> &data) {
        made_ = detail::Descriptor(WEFT_BACKEND_DEVICEPROP_DESCRIPTOR);
        made_.set(WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, WEFT_TYPE_CHAR, data);
        return build();
    }

  private:
    detail::Descriptor made_{WEFT_BACKEND_DEVICEPROP_DESCRIPTOR};
    friend class graph::Graph;
};

/** Kernels to share between graphs that differ only in shape. */
class KernelCache {
  public:
    bool is_finalized() const { return is_built_; }
    error_t build() {
        error_t done = made_.finalize(error_code_t::INVALID_VALUE);
        is_built_ = done.is_good();
        return done;
    }
    error_t to_json(std::string &text) const {
        text = made_.get_text(WEFT_ATTR_KERNEL_CACHE_JSON_REPRESENTATION);
        return {};
    }
    error_t from_json(const std::string &text) {
        made_ = detail::Descriptor(WEFT_BACKEND_KERNEL_CACHE_DESCRIPTOR);
        made_.set_text(WEFT_ATTR_KERNEL_CACHE_JSON_REPRESENTATION, text);
        return build();
    }

  private:
    detail::Descriptor made_{WEFT_BACKEND_KERNEL_CACHE_DESCRIPTOR};
    bool is_built_ = false;
    friend class graph::Graph;
};

/* ---- Attributes whose setters set more than one option ----------------------------------------------------------- */

namespace graph {

class Slice_attributes : public Strided_slice_options<Slice_attributes> {
  public:
    /** First index and exclusive last index, for each dimension. */
    Slice_attributes &set_slices(const std::vector<std::pair<std::int64_t, std::int64_t>> &slices) {
        std::vector<std::int64_t> starts, limits;
        for (const auto &[start, limit] : slices) {
            starts.push_back(start);
            limits.push_back(limit);
        }
        return set_start(starts).set_limit(limits);
    }
    /** Steps in elements, for each dimension; default 1. */
    Slice_attributes &set_strides(const std::vector<std::int64_t> &steps) { return set_steps(steps); }
};

class Resample_attributes : public Resample_options<Resample_attributes> {
  public:
    /** Whether max pooling returns the index of each maximum; default false. Other modes have no index. */
    Resample_attributes &set_generate_index(bool generates) {
        generates_index_ = generates;
        return *this;
    }
    /** The inverse. */
    Resample_attributes &set_is_inference(bool is_inference) { return set_generate_index(!is_inference); }

  private:
    bool generates_index_ = false;
    friend class Graph;
};

class Rmsnorm_backward_attributes : public Rmsnorm_backward_options<Rmsnorm_backward_attributes> {
  public:
    /** Whether the gradient of a bias is computed; default true. */
    Rmsnorm_backward_attributes &has_dbias(bool has) {
        has_dbias_ = has;
        return *this;
    }

  private:
    bool has_dbias_ = true;
    friend class Graph;
};

/** Adds pointwise operations on the scores of attention to a graph, and returns the result of the last one. */
using Score_modifier = std::function<Tensor(std::shared_ptr<Graph>, Tensor)>;

/** Common to attention and its gradient: masks and dropout. */
template <class Self, template <class> class Options> class Attention_attributes : public Options<Self> {
  public:
    using Options<Self>::set_attn_scale;
    /** Factor of the scores; default 1. */
    template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
    Self &set_attn_scale(Number factor) {
        return this->set_attn_scale_value(static_cast<double>(factor));
    }
    /** Hides later keys; queries and keys are aligned at the first one. */
    Self &set_causal_mask(bool is_causal) {
        is_causal_ = is_causal;
        return this->self();
    }
    /** Hides later keys; queries and keys are aligned at the last one. */
    Self &set_causal_mask_bottom_right(bool is_causal) {
        is_bottom_right_ = is_causal;
        return this->self();
    }
    /** Maximum number of keys that a query sees, including its own. */
    Self &set_sliding_window_length(std::int64_t keys) { return this->set_diagonal_band_left_bound(keys); }
    /** Whether set_seq_len_q and set_seq_len_kv define the lengths in use. */
    Self &set_padding_mask(bool is_padded) {
        is_padded_ = is_padded;
        return this->self();
    }
    /** Dropout with the library's generator. seed, offset: scalars of INT32 or INT64. */
    template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
    Self &set_dropout(Number probability, const Operand &seed, const Operand &offset) {
        return this->set_dropout_probability(static_cast<float>(probability))
            .set_dropout_seed(seed)
            .set_dropout_offset(offset);
    }
    /** Dropout with the user's mask, [B, Hq, Sq, Skv] or 1s, and a scalar factor of kept weights; for gradients, its
        inverse may also be given, but is not read. */
    Self &set_dropout(const Tensor &mask, const Operand &scale, const Tensor & = nullptr) {
        return this->set_dropout_mask(mask).set_dropout_scale(scale);
    }
    Self &set_implementation(AttentionImplementation_t) { return this->self(); }
    Self &set_score_mod(Score_modifier modifier) {
        modifier_ = std::move(modifier);
        return this->self();
    }

  protected:
    /** Converts masks to bounds. */
    void resolve() {
        if (is_causal_ || is_bottom_right_)
            this->set_diagonal_band_right_bound(0);
        if (is_bottom_right_)
            this->set_diagonal_alignment(DiagonalAlignment_t::BOTTOM_RIGHT);
    }

    bool is_causal_ = false, is_bottom_right_ = false, is_padded_ = false;
    Score_modifier modifier_, gradient_modifier_;
    friend class Graph;
};

class SDPA_attributes : public Attention_attributes<SDPA_attributes, Sdpa_fwd_options> {
  public:
    /** Whether to compute the statistics that gradients need; default false. */
    SDPA_attributes &set_generate_stats(bool generates) {
        keep_statistics(generates);
        return *this;
    }
    /** The inverse. */
    SDPA_attributes &set_is_inference(bool is_inference) { return set_generate_stats(!is_inference); }
    /** Whether the statistics are base-2 logarithms; default false. */
    SDPA_attributes &set_stats_use_log2(bool uses) {
        has_stats_of_base_2_ = uses;
        return *this;
    }
    /** Upper bounds of the total numbers of queries and keys: hints, which Weft does not need. */
    SDPA_attributes &set_max_total_seq_len_q(std::int64_t) { return *this; }
    SDPA_attributes &set_max_total_seq_len_kv(std::int64_t) { return *this; }
    SDPA_attributes() { keep_statistics(false); }

  private:
    bool has_stats_of_base_2_ = false;
    friend class Graph;
};
using SDPA_fp8_attributes = SDPA_attributes;
using SDPA_mxfp8_attributes = SDPA_attributes;

class SDPA_backward_attributes : public Attention_attributes<SDPA_backward_attributes, Sdpa_bwd_options> {
  public:
    /** The gradient of the score modifier; by default it is derived. */
    SDPA_backward_attributes &set_score_mod_bprop(Score_modifier modifier) {
        gradient_modifier_ = std::move(modifier);
        return *this;
    }
};
using SDPA_fp8_backward_attributes = SDPA_backward_attributes;
using SDPA_mxfp8_backward_attributes = SDPA_backward_attributes;
using Scaled_dot_product_flash_attention_attributes = SDPA_attributes;
using Scaled_dot_product_flash_attention_backward_attributes = SDPA_backward_attributes;
using Matmul_fp8_attributes = Matmul_attributes;

/** Common to reductions and quantisation of groups of rows. */
template <class Self, template <class> class Options> class Grouped_attributes : public Options<Self> {
  public:
    /** First row of each group of the rows of [1, M, N], [E, 1, 1]; a group ends where the next one begins. */
    Self &set_group_offset(Tensor offset) {
        group_offset_ = std::move(offset);
        this->has_groups_ = group_offset_ != nullptr;
        return this->self();
    }

  protected:
    Tensor group_offset_;
    friend class Graph;
};
class Reduction_attributes : public Grouped_attributes<Reduction_attributes, Reduction_options> {};
class Block_scale_quantize_attributes
    : public Grouped_attributes<Block_scale_quantize_attributes, Block_scale_quantize_options> {};

/** Common to rotary position embedding and its gradient. */
template <class Self> class Rotary_attributes : public detail::Attributes<Self> {
  public:
    /** Factor of the result; default 1. */
    Self &set_output_scale(float factor) {
        output_scale = factor;
        return this->self();
    }
    /** Number of elements at the end of each head that are rotated; 0, the default, means all. */
    Self &set_rope_dim(std::int64_t elements) {
        rope_dim = elements;
        return this->self();
    }

    float output_scale = 1;
    std::int64_t rope_dim = 0;
};
class RoPE_attributes : public Rotary_attributes<RoPE_attributes> {};
class RoPE_backward_attributes : public Rotary_attributes<RoPE_backward_attributes> {};

/** Attributes of diagonal_band_mask: which scores are kept. */
class DiagonalBandMask_attributes : public Diagonal_band_mask_options<DiagonalBandMask_attributes> {
  public:
    /** The default comparison is CMP_GT. */
    DiagonalBandMask_attributes() { set_comparison_mode(PointwiseMode_t::CMP_GT); }
};

} // namespace graph

/* ---- From operations to descriptors ------------------------------------------------------------------------------ */

namespace detail {

inline std::vector<Tensor> Recorder::keep(Node node) {
    Settings &settings = node.settings;
    if (settings.name_.empty())
        settings.name_ = node.method + "_" + std::to_string(nodes_.size());
    node.inputs.insert(node.inputs.end(), settings.inputs_.begin(), settings.inputs_.end());
    std::vector<Tensor> made;
    for (Result &result : node.results) {
        if (result.is_computed) {
            result.tensor = std::make_shared<graph::Tensor_attributes>();
            result.tensor->set_name(settings.name_ + "::" + result.key);
            result.tensor->set_dim(settings.dims_).set_stride(settings.strides_);
        }
        made.push_back(result.tensor);
    }
    node.results.insert(node.results.end(), settings.results_.begin(), settings.results_.end());
    for (const Result &result : settings.results_)
        result.tensor->is_given_ = true; /* it has memory, like a tensor() in cuDNN's frontend */
    for (const Result &result : node.results)
        if (result.tensor)
            result.tensor->mark_ = mark_;
    nodes_.push_back(std::move(node));
    return made;
}

inline Tensor Recorder::record_pointwise(const char *method, std::vector<Operand> operands,
                                         const graph::Pointwise_attributes &attributes) {
    const Settings &settings = attributes;
    const int mode = static_cast<int>(
        settings.get_value<PointwiseMode_t>(WEFT_ATTR_POINTWISE_MODE).value_or(PointwiseMode_t::NOT_SET));
    if (mode == WEFT_POINTWISE_IDENTITY && operands.size() > 1)
        operands.resize(1); /* cuDNN's frontend ignores the others */
    std::vector<weftBackendAttributeName_t> names = pointwise_attributes(static_cast<PointwiseMode_t>(mode));
    Node node{method, WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, settings, WEFT_ATTR_POINTWISE_MATH_PREC, {}, {}};
    if (names.size() != operands.size() + 1) {
        std::string wanted =
            names.empty() ? "set_mode() was not called" : std::to_string(names.size() - 1) + " fit its mode";
        node.settings.refuse(std::to_string(operands.size()) + " operands are given, and " + wanted +
                             ". Set the mode, and give as many operands as it takes.");
        names.resize(operands.size() + 1, WEFT_ATTR_OPERATION_POINTWISE_XDESC);
    }
    static const char *const words[] = {"operand 1", "operand 2", "operand 3"};
    for (std::size_t i = 0; i < operands.size(); i++)
        node.inputs.emplace_back(names[i], words[i], operands[i], true);
    node.results.push_back({names.back(), "OUT_0", false, true, true});
    return keep(std::move(node))[0];
}

/** Whether booleans of a graph have one bit each: cuDNN's engines for products and norms use bit masks, those for
    operations that only move or map elements use bytes. */
inline bool have_bit_masks(const std::vector<Node> &nodes) {
    static const std::set<weftBackendDescriptorType_t> kinds = {
        WEFT_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
        WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
        WEFT_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR,
        WEFT_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR,
        WEFT_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR,
        WEFT_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR,
        WEFT_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR};
    return std::any_of(nodes.begin(), nodes.end(), [](const Node &node) { return kinds.count(node.kind) > 0; });
}

/** Creates the descriptors of a graph's tensors and operations. */
class Lowering {
  public:
    Lowering(std::string where, DataType_t io, DataType_t intermediate, DataType_t compute, bool are_booleans_bits,
             const std::shared_ptr<char> &mark)
        : where_(std::move(where)), io_type_(io), intermediate_type_(intermediate), compute_type_(compute),
          are_booleans_bits_(are_booleans_bits), mark_(mark) {}

    /** Determines which tensors are outputs, their uids and types. */
    error_t prepare(const std::vector<Node> &nodes, const std::vector<Tensor> &declared) {
        for (const Node &node : nodes)
            WEFT_HPP_TRY(visit(node));
        choose_outputs(nodes);
        for (const Tensor &tensor : declared)
            order(tensor);
        WEFT_HPP_TRY(number());
        inherit_types();
        return {};
    }
    error_t operation(const Node &node, Descriptor &made);
    /** Copies inferred properties to the tensors. */
    void read_back() const {
        for (const auto &[tensor, made] : made_) {
            tensor->inferred_dims_ = made.get_all<std::int64_t>(WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64);
            tensor->inferred_strides_ = made.get_all<std::int64_t>(WEFT_ATTR_TENSOR_STRIDES, WEFT_TYPE_INT64);
            tensor->inferred_type_ = type_of(made);
        }
    }
    /** All tensors of the operations, in the order of their first use. */
    const std::vector<Tensor> &tensors() const { return order_; }

  private:
    static DataType_t type_of(const Descriptor &made) {
        return static_cast<DataType_t>(made.get_one<int>(WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, -1));
    }
    error_t fail(error_code_t code, const std::string &text) const { return {code, where_ + ": " + text}; }
    void order(const Tensor &tensor) {
        if (tensor && known_.insert(tensor.get()).second)
            order_.push_back(tensor);
    }

    error_t visit(const Node &node);
    error_t check_input(const Node &node, const Input &input, const Tensor &tensor) const;
    void choose_outputs(const std::vector<Node> &nodes);
    error_t number();
    void inherit_types();
    error_t tensor(const Tensor &tensor, Descriptor &made);
    void describe(const graph::Tensor_attributes &tensor, Descriptor &made) const;
    void type_numbers(const Node &node);
    error_t link(const Node &node, const std::vector<Tensor> &tensors, weftBackendAttributeName_t name,
                 Descriptor &made);
    error_t part(const Node &node, Descriptor &made);
    error_t score_shape(const Node &node, graph::Tensor_attributes &scores);
    bool is_omitted(const Result &result) const {
        return !result.tensor || (!result.needed && result.tensor->is_virtual() && !read_.count(result.tensor.get()));
    }

    std::string where_;
    DataType_t io_type_, intermediate_type_, compute_type_;
    bool are_booleans_bits_;
    std::shared_ptr<char> mark_;
    std::set<const graph::Tensor_attributes *> known_, read_, inferred_, statistics_;
    std::set<const graph::Tensor_attributes *> scales_; /**< of attention, for which cuDNN's frontend also accepts dims
                                                             {1} */
    std::vector<Tensor> order_;
    std::map<graph::Tensor_attributes *, Descriptor> made_;
};

inline error_t Lowering::visit(const Node &node) {
    if (!node.settings.refusal_.empty())
        return fail(error_code_t::INVALID_VALUE, node.label() + ": " + node.settings.refusal_);
    const bool is_attention = node.kind == WEFT_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR ||
                              node.kind == WEFT_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR;
    for (const Input &input : node.inputs)
        for (const Tensor &tensor : input.tensors) {
            WEFT_HPP_TRY(check_input(node, input, tensor));
            order(tensor);
            if (tensor && tensor->ragged_offset_)
                order(tensor->ragged_offset_);
            if (is_attention && std::strstr(input.key, "scale_"))
                scales_.insert(tensor.get());
            read_.insert(tensor.get());
        }
    if (node.part) {
        for (const Node &each : node.part->nodes)
            WEFT_HPP_TRY(visit(each));
        for (const Tensor &end : {node.part->scores, node.part->result, node.part->slope, node.part->slope_result}) {
            read_.insert(end.get());
            order(end);
        }
    }
    for (const Result &result : node.results) {
        order(result.tensor);
        if (node.settings.has_groups_ && result.tensor && result.tensor->reordering_ != TensorReordering_t::NONE)
            return fail(error_code_t::GRAPH_NOT_SUPPORTED,
                        node.label() + ": set_group_offset() was called, and its scales have a reordering type, which "
                                       "Weft does not lay out for each group. Let scales lie in order, or quantize "
                                       "each group by itself.");
        if (node.kind == WEFT_BACKEND_OPERATION_SLICE_DESCRIPTOR || std::strcmp(result.key, "INDEX") == 0)
            inferred_.insert(result.tensor.get());
        if (std::strcmp(result.key, "STATS") == 0)
            statistics_.insert(result.tensor.get());
    }
    return {};
}

inline error_t Lowering::check_input(const Node &node, const Input &input, const Tensor &tensor) const {
    const std::string what = node.label() + ": " + input.key;
    if (!tensor)
        return !input.needed ? error_t{}
                             : fail(error_code_t::ATTRIBUTE_NOT_SET,
                                    what + " is nullptr, and the operation needs a tensor there. Give what tensor() or "
                                           "an operation returned.");
    if (tensor->is_result() && tensor->mark_ != mark_)
        return fail(error_code_t::INVALID_VALUE,
                    what + ", " + tensor->label() + ", is a result of another graph. Give a tensor of this graph.");
    if (tensor->is_result() || tensor->number_)
        return {};
    if (tensor->virtual_.value_or(false))
        return fail(error_code_t::INVALID_VALUE,
                    what + ", " + tensor->label() +
                        ", is virtual, but no operation makes it. Leave set_is_virtual() out.");
    if (tensor->dims_.empty())
        return fail(error_code_t::ATTRIBUTE_NOT_SET,
                    what + ", " + tensor->label() +
                        ", has no dims: 1 to 8 extents are expected, none are set. Call set_dim().");
    if (tensor->type_ == DataType_t::NOT_SET && io_type_ == DataType_t::NOT_SET)
        return fail(error_code_t::ATTRIBUTE_NOT_SET, what + ", " + tensor->label() +
                                                         ", has no data type. Call set_data_type(), or "
                                                         "set_io_data_type() of the graph.");
    return {};
}

/** Results that nothing reads become outputs if the user declared none. */
inline void Lowering::choose_outputs(const std::vector<Node> &nodes) {
    bool is_named = false;
    for (const Node &node : nodes)
        for (const Result &result : node.results)
            is_named = is_named || (result.tensor && result.tensor->virtual_ == false);
    for (const Node &node : nodes)
        for (const Result &result : node.results)
            if (result.tensor)
                result.tensor->is_chosen_ =
                    !is_named && !read_.count(result.tensor.get()) && !(result.is_inferred && !result.needed);
}

inline error_t Lowering::number() {
    std::map<std::int64_t, const graph::Tensor_attributes *> taken;
    for (const Tensor &tensor : order_)
        if (tensor->uid_ && !taken.emplace(*tensor->uid_, tensor.get()).second)
            return fail(error_code_t::INVALID_VALUE, tensor->label() + " has the uid of " +
                                                         taken[*tensor->uid_]->label() +
                                                         ": uids are unique in a graph. Give another, or none.");
    std::int64_t next = 1;
    for (const Tensor &tensor : order_) {
        while (!tensor->uid_ && taken.count(next))
            next++;
        if (!tensor->uid_)
            tensor->uid_ = next++;
    }
    return {};
}

/** A tensor without a type gets the graph's type, if that is set. As in cuDNN's frontend, a slice has the type of its
    input, and the statistics of attention are FLOAT; the library infers both, as well as the types of indices. */
inline void Lowering::inherit_types() {
    for (const Tensor &tensor : order_) {
        const bool is_virtual = tensor->is_virtual();
        const bool is_inferred = inferred_.count(tensor.get()) || (!is_virtual && statistics_.count(tensor.get()));
        if (tensor->type_ != DataType_t::NOT_SET || tensor->number_)
            continue;
        tensor->inferred_type_ = is_inferred ? DataType_t::NOT_SET : is_virtual ? intermediate_type_ : io_type_;
    }
}

inline void Lowering::describe(const graph::Tensor_attributes &tensor, Descriptor &made) const {
    made.set(WEFT_ATTR_TENSOR_UNIQUE_ID, WEFT_TYPE_INT64, *tensor.uid_);
    if (!tensor.name_.empty())
        made.set_text(WEFT_ATTR_NAME_EXT, tensor.name_);
    std::vector<std::int64_t> dims = tensor.dims_, strides = tensor.strides_;
    if (tensor.lacks_dims())
        dims = tensor.inferred_dims_;
    if (dims.empty())
        strides.clear();
    if (dims == std::vector<std::int64_t>{1} && scales_.count(&tensor))
        dims = strides = {1, 1, 1, 1};
    if (!dims.empty())
        made.set(WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, dims);
    const char yes = 1;
    if (!strides.empty())
        made.set(WEFT_ATTR_TENSOR_STRIDES, WEFT_TYPE_INT64, strides);
    else
        made.set(WEFT_ATTR_TENSOR_CUDNN_STRIDES_EXT, WEFT_TYPE_BOOLEAN, yes);
    DataType_t type = tensor.get_data_type();
    if (type == DataType_t::BOOLEAN && (!are_booleans_bits_ || tensor.is_virtual()))
        type = DataType_t::BYTE_BOOLEAN;
    if (type != DataType_t::NOT_SET)
        made.set(WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, static_cast<int>(type));
    if (tensor.alignment_)
        made.set(WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, WEFT_TYPE_INT64, tensor.alignment_);
    if (tensor.vector_.first != 1) {
        made.set(WEFT_ATTR_TENSOR_VECTOR_COUNT, WEFT_TYPE_INT64, tensor.vector_.first);
        made.set(WEFT_ATTR_TENSOR_VECTORIZED_DIMENSION, WEFT_TYPE_INT64, tensor.vector_.second);
    }
    if (tensor.reordering_ != TensorReordering_t::NONE)
        made.set(WEFT_ATTR_TENSOR_REORDERING_MODE, WEFT_TYPE_TENSOR_REORDERING_MODE,
                 static_cast<int>(tensor.reordering_));
    if (tensor.is_virtual())
        made.set(WEFT_ATTR_TENSOR_IS_VIRTUAL, WEFT_TYPE_BOOLEAN, yes);
    if (tensor.get_has_compile_time_constant()) {
        const void *address = tensor.constant_->data();
        made.set(WEFT_ATTR_TENSOR_CONSTANT_VALUE, WEFT_TYPE_VOID_PTR, address);
    } else if (tensor.by_value_) {
        made.set(WEFT_ATTR_TENSOR_IS_BY_VALUE, WEFT_TYPE_BOOLEAN, yes);
    }
}

inline error_t Lowering::tensor(const Tensor &tensor, Descriptor &made) {
    if (auto found = made_.find(tensor.get()); found != made_.end()) {
        made = found->second;
        return {};
    }
    made = Descriptor(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    describe(*tensor, made);
    if (tensor->ragged_offset_) {
        Descriptor offset;
        WEFT_HPP_TRY(this->tensor(tensor->ragged_offset_, offset));
        made.link(WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC, offset);
        made.set(WEFT_ATTR_TENSOR_RAGGED_OFFSET_MULTIPLIER, WEFT_TYPE_INT64, tensor->ragged_multiplier_);
    }
    if (error_t failed = made.finalize(error_code_t::INVALID_VALUE); failed.is_bad())
        return failed.err_msg = where_ + ": " + failed.err_msg, failed;
    made_[tensor.get()] = made;
    return {};
}

/** Gives numeric operands the type of the other operands. */
inline void Lowering::type_numbers(const Node &node) {
    DataType_t beside = DataType_t::NOT_SET;
    for (const Input &input : node.inputs)
        for (const Tensor &each : input.tensors)
            if (each && !each->number_ && beside == DataType_t::NOT_SET &&
                input.name != WEFT_ATTR_OPERATION_POINTWISE_TDESC)
                beside = made_.count(each.get()) ? type_of(made_[each.get()]) : each->get_data_type();
    for (const Input &input : node.inputs)
        for (const Tensor &each : input.tensors) {
            if (!each || !each->number_)
                continue;
            const double value = *each->number_;
            const bool is_integer =
                beside == DataType_t::INT32 || beside == DataType_t::INT64 || beside == DataType_t::INT8;
            if (each->is_integer_ && is_integer)
                each->set_compile_time_constant(static_cast<std::int64_t>(value));
            else if (beside == DataType_t::DOUBLE)
                each->set_compile_time_constant(value);
            else
                each->set_compile_time_constant(static_cast<float>(value));
        }
}

inline error_t Lowering::link(const Node &node, const std::vector<Tensor> &tensors, weftBackendAttributeName_t name,
                              Descriptor &made) {
    std::vector<Descriptor> each;
    for (const Tensor &one : tensors) {
        if (!one)
            return {};
        error_t failed = tensor(one, each.emplace_back());
        if (failed.is_bad())
            return failed.err_msg += " (operand of " + node.label() + ")", failed;
    }
    made.link(name, each);
    return {};
}

inline error_t Lowering::operation(const Node &node, Descriptor &made) {
    type_numbers(node);
    made = Descriptor(node.kind);
    made.set_text(WEFT_ATTR_NAME_EXT, node.settings.name_);
    for (const Input &input : node.inputs)
        WEFT_HPP_TRY(link(node, input.tensors, input.name, made));
    for (const Setting &setting : node.settings.settings_)
        made.set(setting.name, setting.type, setting.count, setting.bytes.data());
    const DataType_t own = node.settings.compute_type_;
    const DataType_t compute = own == DataType_t::NOT_SET ? compute_type_ : own;
    if (node.compute_type && compute != DataType_t::NOT_SET)
        made.set(*node.compute_type, WEFT_TYPE_DATA_TYPE, static_cast<int>(compute));
    if (node.part)
        WEFT_HPP_TRY(part(node, made));
    for (const Result &result : node.results)
        if (!is_omitted(result))
            WEFT_HPP_TRY(link(node, {result.tensor}, result.name, made));
    if (error_t failed = made.finalize(error_code_t::INVALID_VALUE); failed.is_bad())
        return failed.err_msg = where_ + ": " + failed.err_msg, failed;
    return {};
}

/** The shape and type of the scores that a modifier reads. */
inline error_t Lowering::score_shape(const Node &node, graph::Tensor_attributes &scores) {
    Descriptor queries, keys;
    WEFT_HPP_TRY(tensor(node.part->queries, queries));
    WEFT_HPP_TRY(tensor(node.part->keys, keys));
    auto q = queries.get_all<std::int64_t>(WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64);
    auto k = keys.get_all<std::int64_t>(WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64);
    if (q.size() != 4 || k.size() != 4)
        return fail(error_code_t::INVALID_VALUE, node.label() +
                                                     ": attention with a score modifier takes [B, H, S, D], got " +
                                                     list_text(q) + " and " + list_text(k) + ". Reshape them.");
    const std::int64_t count = node.part->is_paged ? node.part->paged_keys : k[2];
    scores.set_dim({q[0], q[1], q[2], count}).set_stride({q[1] * q[2] * count, q[2] * count, count, 1});
    scores.set_data_type(type_of(queries) == DataType_t::DOUBLE ? DataType_t::DOUBLE : DataType_t::FLOAT);
    return {};
}

inline error_t Lowering::part(const Node &node, Descriptor &made) {
    WEFT_HPP_TRY(score_shape(node, *node.part->scores));
    if (node.part->slope)
        WEFT_HPP_TRY(score_shape(node, *node.part->slope));
    std::vector<Descriptor> operations;
    for (const Node &each : node.part->nodes)
        WEFT_HPP_TRY(operation(each, operations.emplace_back()));
    Descriptor nested(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    nested.link(WEFT_ATTR_OPERATIONGRAPH_OPS, operations);
    WEFT_HPP_TRY(nested.finalize(error_code_t::INVALID_VALUE));
    auto name_end = [&made](weftBackendAttributeName_t name, const Tensor &end) {
        if (end)
            made.set(name, WEFT_TYPE_INT64, *end->uid_);
    };
    if (node.kind == WEFT_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR) {
        made.link(WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH, nested);
        name_end(WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, node.part->scores);
        name_end(WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, node.part->result);
    } else {
        made.link(WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH, nested);
        name_end(WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, node.part->scores);
        name_end(WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID, node.part->result);
        name_end(WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_INPUT_UID_EXT, node.part->slope);
        name_end(WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_OUTPUT_UID_EXT, node.part->slope_result);
    }
    return {};
}

/** An engine with knob settings, and its plan once it is built. */
struct Candidate {
    Descriptor config, engine;
    std::int64_t id = 0;
    std::map<std::int64_t, std::int64_t> knobs = {};
    Descriptor plan = {};

    std::string tag() const {
        std::string text = "eng" + std::to_string(id);
        for (const auto &[knob, value] : knobs)
            text += "_k" + std::to_string(knob) + "=" + std::to_string(value);
        return text;
    }
    std::string label() const { return engine.get_text(WEFT_ATTR_ENGINE_NAME_EXT) + " (" + tag() + ")"; }
    std::int64_t workspace() const { return config.get_int(WEFT_ATTR_ENGINECFG_WORKSPACE_SIZE); }
};

} // namespace detail

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

namespace graph {

/** A graph of operations, and the plans that compute it. */
class Graph : public detail::Operations {
  public:
    Graph() = default;
    /** io: type of tensors in memory whose type is not set. */
    explicit Graph(DataType_t io) : io_type_(io) {}
    Graph(Graph &&) = default;
    Graph &operator=(Graph &&) = default;
    /** A copy shares the tensors and the plans. */
    Graph(const Graph &) = default;
    Graph &operator=(const Graph &) = default;

    /* Settings of the whole graph. */
    Graph &set_name(const std::string &name) { return name_ = name, *this; }
    /** Type of tensors in memory whose type is not set. */
    Graph &set_io_data_type(DataType_t type) { return io_type_ = type, *this; }
    /** Type of virtual tensors whose type is not set; the default is free: exact within a kernel. */
    Graph &set_intermediate_data_type(DataType_t type) { return intermediate_type_ = type, *this; }
    /** Compute type of operations whose compute type is not set. */
    Graph &set_compute_data_type(DataType_t type) { return compute_type_ = type, *this; }
    Graph &set_sm_count(std::int32_t count) { return sm_count_ = count, *this; }
    /** Accepted for compatibility: populate_cuda_graph() is not available. */
    Graph &set_cuda_graph_retention(CudaGraphRetention_t) { return *this; }
    /** Accepted for compatibility: the handle or set_device_properties() determines the chip. */
    Graph &set_sm_version(std::int32_t) { return *this; }
    /** Whether DataType_t::BOOLEAN is one bit per element. By default this depends on the operations, as in cuDNN: one
        bit in a graph with a convolution, a matrix product, a norm or its statistics, otherwise one byte. */
    Graph &set_booleans_are_bits(bool are_bits) { return are_booleans_bits_ = are_bits, *this; }
    Graph &set_dynamic_shape_enabled(bool is_enabled) { return is_dynamic_ = is_enabled, *this; }
    Graph &set_override_shape_enabled(bool is_enabled) { return is_override_ = is_enabled, *this; }
    Graph &set_kernel_cache(std::shared_ptr<KernelCache> cache) { return cache_ = std::move(cache), *this; }
    Graph &set_device_properties(std::shared_ptr<const DeviceProperties> device) {
        return device_ = std::move(device), *this;
    }
    const std::string &get_name() const { return name_; }

    /* Tensors. */
    Tensor tensor(const Tensor_attributes &attributes) {
        return declared_.emplace_back(std::make_shared<Tensor_attributes>(attributes));
    }
    Tensor tensor(const std::vector<std::int64_t> &dims, const std::string &name = "",
                  DataType_t type = DataType_t::NOT_SET) {
        return tensor(Tensor_attributes().set_dim(dims).set_name(name).set_data_type(type));
    }
    /** A scalar: its value is part of the plan, or a default for variant packs that do not override it. */
    template <class Number, class = std::enable_if_t<detail::is_scalar_v<Number>>>
    Tensor tensor(Number value, ScalarType kind = ScalarType::COMPILE_TIME_CONST) {
        return tensor(Tensor_attributes(value, kind));
    }
    /** A tensor of the same shape and type, with its own uid. */
    Tensor tensor_like(const Tensor &like, const std::string &name = "") {
        Tensor_attributes made;
        made.set_name(name).set_dim(like->get_dim()).set_stride(like->get_stride());
        made.set_data_type(like->get_data_type()).set_alignment(like->alignment_);
        return tensor(made);
    }

    /* Operations with arguments of their own. */
    Tensor slice(const Operand &input, const Slice_attributes &attributes);
    /** Pooling or interpolation. Returns y, and the index of max pooling if set_generate_index() requests it. */
    std::array<Tensor, 2> resample(const Operand &input, Resample_attributes attributes);
    std::array<Tensor, 3> rmsnorm_backward(const Operand &grad, const Operand &input, const Operand &scale,
                                           const Operand &inv_variance, Rmsnorm_backward_attributes attributes = {});
    /** Scaled dot-product attention. Returns o, and the statistics if set_generate_stats() requests them. */
    std::array<Tensor, 2> sdpa(const Operand &q, const Operand &k, const Operand &v, SDPA_attributes attributes = {}) {
        auto made = attention("sdpa", q, k, v, attributes, {});
        return {made[0], made[1]};
    }
    /** FP8 attention with a scale per tensor. Returns o, statistics, amax of the probabilities, amax of o. */
    std::array<Tensor, 4> sdpa_fp8(const Operand &q, const Operand &k, const Operand &v, const Operand &descale_q,
                                   const Operand &descale_k, const Operand &descale_v, const Operand &descale_s,
                                   const Operand &scale_s, const Operand &scale_o, SDPA_fp8_attributes attributes = {});
    /** MXFP8 attention, with a scale per block of 32. Returns o, statistics, amax of o. */
    std::array<Tensor, 3> sdpa_mxfp8(const Operand &q, const Operand &k, const Operand &v, const Operand &descale_q,
                                     const Operand &descale_k, const Operand &descale_v,
                                     SDPA_mxfp8_attributes attributes = {});
    /** The same under cuDNN's name. */
    std::array<Tensor, 3> sdpa_fp8(const Operand &q, const Operand &k, const Operand &v, const Operand &descale_q,
                                   const Operand &descale_k, const Operand &descale_v,
                                   SDPA_mxfp8_attributes attributes = {}) {
        return sdpa_mxfp8(q, k, v, descale_q, descale_k, descale_v, std::move(attributes));
    }
    /** Gradients of attention. Returns dQ, dK, dV. */
    std::array<Tensor, 3> sdpa_backward(const Operand &q, const Operand &k, const Operand &v, const Operand &o,
                                        const Operand &dO, const Operand &stats,
                                        SDPA_backward_attributes attributes = {});
    /** Gradients of FP8 attention. Returns dQ, dK, dV, and the amax of dQ, dK, dV and dP. */
    std::array<Tensor, 7> sdpa_fp8_backward(const Operand &q, const Operand &k, const Operand &v, const Operand &o,
                                            const Operand &dO, const Operand &stats, const Operand &descale_q,
                                            const Operand &descale_k, const Operand &descale_v,
                                            const Operand &descale_o, const Operand &descale_dO,
                                            const Operand &descale_s, const Operand &descale_dP, const Operand &scale_s,
                                            const Operand &scale_dQ, const Operand &scale_dK, const Operand &scale_dV,
                                            const Operand &scale_dP, SDPA_fp8_backward_attributes attributes = {});
    /** Gradients of MXFP8 attention: q, k and dO have scales along their rows, and a second copy along the sequence
        (_T). Returns dQ, dK, dV, and the amax of each. */
    std::array<Tensor, 6> sdpa_mxfp8_backward(const Operand &q, const Operand &q_T, const Operand &k,
                                              const Operand &k_T, const Operand &v, const Operand &o_f16,
                                              const Operand &dO_f16, const Operand &dO, const Operand &dO_T,
                                              const Operand &stats, const Operand &descale_q,
                                              const Operand &descale_q_T, const Operand &descale_k,
                                              const Operand &descale_k_T, const Operand &descale_v,
                                              const Operand &descale_dO, const Operand &descale_dO_T,
                                              SDPA_mxfp8_backward_attributes attributes = {});
    /** The same under cuDNN's name. */
    std::array<Tensor, 6> sdpa_fp8_backward(const Operand &q, const Operand &q_T, const Operand &k, const Operand &k_T,
                                            const Operand &v, const Operand &o_f16, const Operand &dO_f16,
                                            const Operand &dO, const Operand &dO_T, const Operand &stats,
                                            const Operand &descale_q, const Operand &descale_q_T,
                                            const Operand &descale_k, const Operand &descale_k_T,
                                            const Operand &descale_v, const Operand &descale_dO,
                                            const Operand &descale_dO_T,
                                            SDPA_mxfp8_backward_attributes attributes = {}) {
        return sdpa_mxfp8_backward(q, q_T, k, k_T, v, o_f16, dO_f16, dO, dO_T, stats, descale_q, descale_q_T, descale_k,
                                   descale_k_T, descale_v, descale_dO, descale_dO_T, std::move(attributes));
    }
    /** Reduces the dimensions in which the result has the extent 1. */
    Tensor reduction(const Operand &input, const Reduction_attributes &attributes = {});
    /** Quantises to a narrow type with a scale per block. Returns y and the scales. */
    std::array<Tensor, 2> block_scale_quantize(const Operand &input, Block_scale_quantize_attributes attributes = {});
    /** Rotates the last elements of each head by the angles freqs, [S, 1, 1, rope_dim], in radians; pairs consist of an
        element of either half. input: [B, H, S, D] or [S, B, H, D]. */
    Tensor rope(const Tensor &input, const Tensor &freqs, const RoPE_attributes &attributes = {});
    /** The gradient of rope: the rotation by the opposite angles. */
    Tensor rope_backward(const Tensor &dY, const Tensor &freqs, const RoPE_backward_attributes &attributes = {});
    /** Scores x, [B, H, Sq, Skv], on one side of a diagonal, and b elsewhere. With left_bound, keeps col + left_bound -
        shift > row, otherwise row + shift_right_bound + shift >= col, where the comparison is that of the attributes;
        shift is seq_len_kv - seq_len_q, or 0 without them. */
    Tensor diagonal_band_mask(const Tensor &x, const Operand &b, const Tensor &seq_len_q, const Tensor &seq_len_kv,
                              const Tensor &left_bound, const Tensor &shift_right_bound,
                              const DiagonalBandMask_attributes &attributes);
    /** The same, with lengths or their running sums. */
    Tensor diagonal_band_mask(const Tensor &x, const Operand &b, const Tensor &seq_len_q, const Tensor &seq_len_kv,
                              const Tensor &cu_seq_len_q, const Tensor &cu_seq_len_kv, const Tensor &left_bound,
                              const Tensor &shift_right_bound, DiagonalBandMask_attributes attributes);
    /** C = scale_c descale_a descale_b A B, over the last two dimensions. Returns C, and the amax of C before
        scale_c. */
    std::array<Tensor, 2> matmul_fp8(const Tensor &A, const Tensor &B, const Operand &descale_a,
                                     const Operand &descale_b, const Operand &scale_c,
                                     const Matmul_fp8_attributes &attributes = {});

    /* From the graph to plans. */
    /** Checks every operation, and infers unset properties. */
    error_t validate();
    /** Creates the graph and checks it as a whole. Without a handle, for set_device_properties() or the default
        device. */
    error_t build_operation_graph(weftHandle_t handle);
    error_t build_operation_graph();
    /** Queries engine configurations, best first. */
    error_t create_execution_plans(const std::vector<HeurMode_t> &modes = {HeurMode_t::A});
    /** Adds an engine with explicit knob settings. */
    error_t create_execution_plan(std::int64_t engine, const std::unordered_map<KnobType_t, std::int64_t> &knobs);
    error_t get_engine_count(std::int64_t &count) const;
    error_t get_knobs_for_engine(std::int64_t engine, std::vector<Knob> &knobs) const;
    /** Drops plans that the filters below exclude; fails if none is left. */
    error_t check_support();
    error_t check_support(weftHandle_t) { return check_support(); }
    error_t build_plans(BuildPlanPolicy_t policy = BuildPlanPolicy_t::HEURISTICS_CHOICE, bool multithread = false);
    error_t build_plans(weftHandle_t, BuildPlanPolicy_t policy = BuildPlanPolicy_t::HEURISTICS_CHOICE,
                        bool multithread = false) {
        return build_plans(policy, multithread);
    }
    error_t build_plan_at_index(std::int64_t index);
    error_t build_plan_at_index(weftHandle_t, std::int64_t index) { return build_plan_at_index(index); }
    /** Accepted for compatibility: build() has loaded everything already. */
    error_t warmup(weftHandle_t) const {
        return need_plan([] {});
    }
    /** All of the above. */
    error_t build(weftHandle_t handle, const std::vector<HeurMode_t> &modes = {HeurMode_t::A},
                  BuildPlanPolicy_t policy = BuildPlanPolicy_t::HEURISTICS_CHOICE, bool multithread = false);
    error_t build(const std::vector<HeurMode_t> &modes = {HeurMode_t::A});
    /** On the graph's own handle of the first device of a kind. */
    error_t build(weftDeviceKind_t kind) {
        own_handle_ = std::make_shared<Handle>(kind);
        WEFT_HPP_TRY(own_handle_->status());
        return build(*own_handle_);
    }

    Graph &select_numeric_notes(const std::vector<NumericalNote_t> &notes);
    Graph &deselect_numeric_notes(const std::vector<NumericalNote_t> &notes);
    Graph &select_behavior_notes(const std::vector<BehaviorNote_t> &notes);
    Graph &deselect_behavior_notes(const std::vector<BehaviorNote_t> &notes);
    Graph &deselect_engines(const std::vector<std::string> &names);
    /** Limits the workspace of plans to `bytes`; drops plans that need more. */
    Graph &deselect_workspace_greater_than(std::int64_t bytes) { return most_workspace_ = bytes, *this; }
    /** Accepted for compatibility: no kernel of Weft needs more shared memory than the chip has. */
    Graph &deselect_shared_mem_greater_than(std::int64_t) { return *this; }

    /* Asking. */
    /** Plans that were dropped, or that could not be built so that the next one was tried, each with its reason. */
    const std::vector<std::string> &get_refusals() const { return failures_; }
    std::int64_t get_execution_plan_count() const { return static_cast<std::int64_t>(candidates_.size()); }
    /** Size of the workspace for execute(), in bytes; its memory may have any alignment. */
    std::int64_t get_workspace_size() const { return padded(plan_.get_int(WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)); }
    error_t get_workspace_size(std::int64_t &bytes) const {
        return need_plan([&] { bytes = get_workspace_size(); });
    }
    std::int64_t get_workspace_size_plan_at_index(std::int64_t index) const;
    /** Sufficient for all plans that have been built. */
    std::int64_t get_autotune_workspace_size() const;
    error_t get_plan_name(std::string &name) const {
        return need_plan([&] { name = plan_.get_text(WEFT_ATTR_EXECUTION_PLAN_TAG_EXT); });
    }
    error_t get_plan_name_at_index(std::int64_t index, std::string &name) const;
    error_t get_behavior_notes(std::vector<BehaviorNote_t> &notes) const {
        return get_behavior_notes_for_plan_at_index(chosen_, notes);
    }
    error_t get_behavior_notes_for_plan_at_index(std::int64_t index, std::vector<BehaviorNote_t> &notes) const;
    error_t query_tensor_attributes_of_uid(std::int64_t uid, Tensor_attributes &found) const;
    /** The engine of a plan and its knobs, in the form of create_execution_plan(). */
    error_t get_engine_and_knobs_at_index(std::int64_t index, std::int64_t &engine,
                                          std::unordered_map<KnobType_t, std::int64_t> &knobs) const;
    /** The graph as JSON, the output of serialize(), or the reason why it cannot be written. Stream output prints the
        same. */
    std::string print() const {
        std::string text;
        const error_t done = serialize(text);
        return done.is_good() ? text : done.get_message();
    }
    friend std::ostream &operator<<(std::ostream &out, const Graph &graph) { return out << graph.print(); }
    /** A hash that equal graphs share, for looking up plans. Includes names and uids. */
    std::size_t key() const { return std::hash<std::string>()(print()); }
    /** The steps of the plan and the reasons for them, as JSON. */
    std::string report() const { return plan_.get_text(WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT); }

    /* Running. */
    using Pointers = std::unordered_map<Tensor, void *>;
    using Pointers_by_uid = std::unordered_map<std::int64_t, void *>;
    /** Enqueues the plan on the handle's stream; on the CPU, computes it before returning. */
    error_t execute(weftHandle_t handle, const Pointers &memory, void *workspace) const {
        return run(handle, plan_, uids_of(memory), workspace);
    }
    error_t execute(weftHandle_t handle, const Pointers_by_uid &memory, void *workspace) const {
        return run(handle, plan_, memory, workspace);
    }
    /** On the handle that the graph was built with, with a workspace in the device's memory. */
    error_t execute(const Pointers &memory) const { return run_alone(uids_of(memory)); }
    error_t execute(const Pointers_by_uid &memory) const { return run_alone(memory); }
    /** With other shapes, for tensors of a graph with set_override_shape_enabled(). */
    error_t execute(weftHandle_t handle, const Pointers_by_uid &memory, void *workspace,
                    const std::vector<std::int64_t> &override_uids,
                    const std::vector<std::vector<std::int64_t>> &override_shapes,
                    const std::vector<std::vector<std::int64_t>> &override_strides) const;
    error_t execute_plan_at_index(weftHandle_t handle, const Pointers &memory, void *workspace,
                                  std::int64_t index) const {
        return execute_plan_at_index(handle, uids_of(memory), workspace, index);
    }
    error_t execute_plan_at_index(weftHandle_t handle, const Pointers_by_uid &memory, void *workspace,
                                  std::int64_t index) const;
    /** Declares inputs of the chosen plan constant, like weftFreeze: packs them once, for executions with these
        addresses. */
    error_t freeze(const Pointers &memory) const { return freeze(uids_of(memory)); }
    error_t freeze(const Pointers_by_uid &memory) const;
    /** Runs all plans that have been built several times, and chooses the fastest. */
    error_t autotune(weftHandle_t handle, const Pointers &memory, void *workspace, void * = nullptr) {
        return autotune(handle, uids_of(memory), workspace);
    }
    error_t autotune(weftHandle_t handle, const Pointers_by_uid &memory, void *workspace, void * = nullptr);
    /** Not supported: capture a stream during execute() instead. */
    template <class Memory, class Cuda_graph>
    error_t populate_cuda_graph(weftHandle_t, const Memory &, void *, Cuda_graph) const {
        return fail(error_code_t::GRAPH_NOT_SUPPORTED, "plans are not written into CUDA graphs directly. Capture the "
                                                       "stream of execute() instead.");
    }
    template <class Memory, class Cuda_graph>
    error_t update_cuda_graph(weftHandle_t handle, const Memory &memory, void *workspace, Cuda_graph graph) const {
        return populate_cuda_graph(handle, memory, workspace, graph);
    }

    /* Saving. */
    /** with_code: includes the machine code of the plan's kernels, so that loading compiles nothing. */
    error_t serialize(std::vector<std::uint8_t> &data, bool with_code = false) const;
    /** A graph that executes a saved plan; memory is then identified by uid. with_code: uses the saved machine code. */
    error_t deserialize(weftHandle_t handle, const std::vector<std::uint8_t> &data, bool with_code = false);
    /** The graph itself as JSON: its tensors, operations and types, without a plan. */
    error_t serialize(std::string &json) const;
    /** Replaces the graph by one that was written; its tensors can be looked up by uid after validate(). */
    error_t deserialize(const std::string &json);
    /** The same with the value types of a JSON library that has parse() and dump(). */
    template <class Json> auto serialize(Json &json) const -> decltype(Json::parse(std::string()), error_t()) {
        std::string text;
        WEFT_HPP_TRY(serialize(text));
        json = Json::parse(text);
        return {};
    }
    template <class Json> auto deserialize(const Json &json) -> decltype(std::string(json.dump()), error_t()) {
        return deserialize(std::string(json.dump()));
    }

  private:
    using Filter = std::function<std::string(const detail::Candidate &)>;

    static std::int64_t padded(std::int64_t bytes) { return bytes ? bytes + static_cast<std::int64_t>(ALIGNMENT) : 0; }
    static Pointers_by_uid uids_of(const Pointers &memory) {
        Pointers_by_uid found;
        for (const auto &[tensor, address] : memory)
            found[tensor ? tensor->get_uid() : NO_TENSOR] = address;
        return found;
    }
    std::string label() const { return name_.empty() ? "graph" : "graph '" + name_ + "'"; }
    error_t fail(error_code_t code, const std::string &text) const { return {code, label() + ": " + text}; }
    error_t placed(error_t error) const {
        if (error.is_bad() && error.err_msg.compare(0, label().size(), label()) != 0)
            error.err_msg = label() + ": " + error.err_msg;
        return error;
    }
    template <class Do> error_t need_plan(Do &&act) const {
        if (!plan_)
            return fail(error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED, "no plan is built. Call build() first.");
        return act(), error_t{};
    }
    template <class Attributes>
    std::vector<Tensor> attention(const char *method, const Operand &q, const Operand &k, const Operand &v,
                                  Attributes &attributes, std::vector<detail::Result> more);
    template <class Attributes> static void check_padding(Attributes &attributes, const char *q, const char *kv);
    std::vector<Tensor> gradients(const char *method, const std::array<Operand, 6> &operands,
                                  SDPA_backward_attributes &attributes, std::vector<detail::Result> more);
    template <class Attributes>
    std::shared_ptr<detail::Part> modify(const Tensor &q, const Tensor &k, const Attributes &attributes);
    template <class Attributes> Tensor refused(const char *method, Attributes attributes, const std::string &rule);
    void infer(const std::vector<Tensor> &tensors);
    Tensor group_sums(const Tensor &input, ReductionMode_t mode, const Tensor &group_offset);
    Tensor row_numbers(const Tensor &input);
    template <class Attributes>
    Tensor rotated(const char *method, const Tensor &x, const Tensor &freqs, double sign, const Attributes &attributes);
    error_t lower(std::vector<detail::Descriptor> &operations);
    error_t lower_once(std::vector<detail::Descriptor> &operations);
    void read_slots();
    detail::Descriptor engine(std::int64_t id) const;
    error_t configure(std::int64_t id, const std::map<std::int64_t, std::int64_t> &knobs,
                      detail::Descriptor &made) const;
    error_t ask(HeurMode_t mode);
    void add_candidate(detail::Descriptor config);
    void hold_to_workspace(detail::Candidate &candidate) const;
    std::string refusal(const detail::Candidate &candidate) const;
    error_t plan_of(const detail::Candidate &candidate, bool with_code, detail::Descriptor &made) const;
    error_t none_left() const;
    void choose(std::int64_t index);
    error_t at(std::int64_t index) const;
    template <class Note>
    Graph &filter_notes(const std::vector<Note> &notes, weftBackendAttributeName_t name,
                        weftBackendAttributeType_t type, bool is_wanted, const char *rule);
    error_t slots(const detail::Descriptor &plan, const Pointers_by_uid &memory,
                  std::vector<std::uint64_t> &found) const;
    error_t refuse_memory(std::int64_t uid) const;
    error_t run(weftHandle_t handle, const detail::Descriptor &plan, const Pointers_by_uid &memory,
                void *workspace) const;
    error_t run_alone(const Pointers_by_uid &memory) const;
    static void *aligned(void *workspace) {
        const auto address = reinterpret_cast<std::uintptr_t>(workspace);
        return reinterpret_cast<void *>((address + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    }

    static constexpr std::uintptr_t ALIGNMENT = 64;      /**< Alignment of a workspace, in bytes. */
    static constexpr std::int64_t NO_TENSOR = INT64_MIN; /**< The uid of nullptr. */

    std::string name_;
    DataType_t io_type_ = DataType_t::NOT_SET, intermediate_type_ = DataType_t::NOT_SET;
    DataType_t compute_type_ = DataType_t::NOT_SET;
    std::int32_t sm_count_ = 0;
    bool is_dynamic_ = false, is_override_ = false;
    std::optional<bool> are_booleans_bits_;
    std::int64_t most_workspace_ = -1;
    std::shared_ptr<KernelCache> cache_;
    std::shared_ptr<const DeviceProperties> device_;
    std::vector<Tensor> declared_;
    std::map<std::int64_t, Tensor> by_uid_;
    std::shared_ptr<Handle> own_handle_;
    weftHandle_t handle_ = nullptr;
    detail::Descriptor graph_, plan_;
    std::vector<detail::Candidate> candidates_;
    std::vector<std::string> failures_;
    std::vector<Filter> filters_;
    std::int64_t chosen_ = -1;
    bool is_filtered_ = false;
    std::shared_ptr<std::set<std::string>> words_; /**< The strings that nodes of a deserialized graph point to. */
};

/* ---- Operations -------------------------------------------------------------------------------------------------- */

inline Tensor Graph::slice(const Operand &input, const Slice_attributes &attributes) {
    return record("slice", WEFT_BACKEND_OPERATION_SLICE_DESCRIPTOR, attributes, std::nullopt,
                  {{WEFT_ATTR_OPERATION_SLICE_XDESC, "input", input, true}},
                  {{WEFT_ATTR_OPERATION_SLICE_YDESC, "Y", false, true, true}})[0];
}

inline Tensor Graph::diagonal_band_mask(const Tensor &x, const Operand &b, const Tensor &seq_len_q,
                                        const Tensor &seq_len_kv, const Tensor &left_bound,
                                        const Tensor &shift_right_bound,
                                        const DiagonalBandMask_attributes &attributes) {
    return diagonal_band_mask(x, b, seq_len_q, seq_len_kv, nullptr, nullptr, left_bound, shift_right_bound, attributes);
}

inline Tensor Graph::diagonal_band_mask(const Tensor &x, const Operand &b, const Tensor &seq_len_q,
                                        const Tensor &seq_len_kv, const Tensor &cu_seq_len_q,
                                        const Tensor &cu_seq_len_kv, const Tensor &left_bound,
                                        const Tensor &shift_right_bound, DiagonalBandMask_attributes attributes) {
    return record("diagonal_band_mask", WEFT_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, attributes, std::nullopt,
                  {{WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, "x", x, true},
                   {WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, "b", b, true},
                   {WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC, "seq_len_q", seq_len_q, false},
                   {WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC, "seq_len_kv", seq_len_kv, false},
                   {WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_QDESC, "cu_seq_len_q", cu_seq_len_q, false},
                   {WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_KVDESC, "cu_seq_len_kv", cu_seq_len_kv, false},
                   {WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC, "left_bound", left_bound, false},
                   {WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC, "shift_right_bound",
                    shift_right_bound, false}},
                  {{WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, "Y", false, true, true}})[0];
}

inline std::array<Tensor, 2> Graph::resample(const Operand &input, Resample_attributes attributes) {
    const bool is_max = attributes.get_resampling_mode() == ResampleMode_t::MAXPOOL;
    auto made = record(
        "resample", WEFT_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR, attributes, WEFT_ATTR_RESAMPLE_COMP_TYPE,
        {{WEFT_ATTR_OPERATION_RESAMPLE_FWD_XDESC, "input", input, true}},
        {{WEFT_ATTR_OPERATION_RESAMPLE_FWD_YDESC, "Y", false, true, true},
         {WEFT_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC, "INDEX", true, is_max && attributes.generates_index_, false}});
    return {made[0], made[1]};
}

inline std::array<Tensor, 3> Graph::rmsnorm_backward(const Operand &grad, const Operand &input, const Operand &scale,
                                                     const Operand &inv_variance,
                                                     Rmsnorm_backward_attributes attributes) {
    attributes.put(WEFT_ATTR_OPERATION_NORM_BWD_MODE, WEFT_TYPE_NORM_MODE, NormMode_t::RMS_NORM);
    auto made = record("rmsnorm_backward", WEFT_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, attributes,
                       WEFT_ATTR_OPERATION_NORM_BWD_COMP_TYPE_EXT,
                       {{WEFT_ATTR_OPERATION_NORM_BWD_DYDESC, "grad", grad, true},
                        {WEFT_ATTR_OPERATION_NORM_BWD_XDESC, "input", input, true},
                        {WEFT_ATTR_OPERATION_NORM_BWD_SCALE_DESC, "scale", scale, false},
                        {WEFT_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, "inv_variance", inv_variance, false}},
                       {{WEFT_ATTR_OPERATION_NORM_BWD_DXDESC, "DX", false, true, true},
                        {WEFT_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, "DSCALE", false, true, false},
                        {WEFT_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, "DBIAS", false, attributes.has_dbias_, false}});
    return {made[0], made[1], made[2]};
}

template <class Attributes> void Graph::check_padding(Attributes &attributes, const char *q, const char *kv) {
    bool has_q = false, has_kv = false;
    for (const detail::Input &input : attributes.inputs_) {
        has_q = has_q || std::strstr(input.key, q);
        has_kv = has_kv || std::strstr(input.key, kv);
    }
    if (attributes.is_padded_ && !(has_q && has_kv))
        attributes.refuse("set_padding_mask(true) needs the lengths of the sequences. Call set_seq_len_q() and "
                          "set_seq_len_kv(), [B, 1, 1, 1] of INT32.");
}

template <class Attributes>
std::vector<Tensor> Graph::attention(const char *method, const Operand &q, const Operand &k, const Operand &v,
                                     Attributes &attributes, std::vector<detail::Result> more) {
    attributes.resolve();
    check_padding(attributes, "seq_len_q", "seq_len_kv");
    std::vector<detail::Result> results = {
        {WEFT_ATTR_OPERATION_SDPA_FWD_ODESC, "O", false, true, true},
        {WEFT_ATTR_OPERATION_SDPA_FWD_STATSDESC, "STATS", true, attributes.has_statistics(), false}};
    results.insert(results.end(), more.begin(), more.end());
    std::shared_ptr<detail::Part> part = modify(q.tensor(), k.tensor(), attributes);
    detail::Node node{method,
                      WEFT_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR,
                      attributes,
                      WEFT_ATTR_OPERATION_SDPA_FWD_COMP_TYPE_EXT,
                      {{WEFT_ATTR_OPERATION_SDPA_FWD_QDESC, "q", q, true},
                       {WEFT_ATTR_OPERATION_SDPA_FWD_KDESC, "k", k, true},
                       {WEFT_ATTR_OPERATION_SDPA_FWD_VDESC, "v", v, true}},
                      std::move(results),
                      std::move(part)};
    std::vector<Tensor> made = keep(std::move(node));
    if (attributes.has_stats_of_base_2_ && made[1]) {
        const bool is_double =
            io_type_ == DataType_t::DOUBLE || (q.tensor() && q.tensor()->type_ == DataType_t::DOUBLE);
        made[1]->set_data_type(is_double ? DataType_t::DOUBLE : DataType_t::FLOAT);
        const DataType_t type = made[1]->type_;
        constexpr double log2_e = 1.4426950408889634;
        made[1] = mul(made[1], log2_e, Pointwise_attributes().set_name(made[1]->name_ + "_log2"));
        made[1]->set_data_type(type);
    }
    return made;
}

/** Adds the operations of score modifiers. */
template <class Attributes>
std::shared_ptr<detail::Part> Graph::modify(const Tensor &q, const Tensor &k, const Attributes &attributes) {
    if (!attributes.modifier_)
        return nullptr;
    auto nested = std::make_shared<Graph>();
    nested->mark_ = mark_;
    auto part = std::make_shared<detail::Part>();
    auto make_scores = [this](const char *name) {
        auto made = std::make_shared<Tensor_attributes>();
        made->set_name(name).mark_ = mark_;
        return made;
    };
    part->queries = q, part->keys = k;
    part->scores = make_scores("scores");
    if (auto most = attributes.template get_value<std::int64_t>(WEFT_ATTR_OPERATION_SDPA_FWD_MAX_SEQ_LEN_KV_EXT))
        part->is_paged = true, part->paged_keys = *most;
    part->result = attributes.modifier_(nested, part->scores);
    if (attributes.gradient_modifier_) {
        part->slope = make_scores("dScores");
        part->slope_result = attributes.gradient_modifier_(nested, part->slope);
    }
    part->nodes = std::move(nested->nodes_);
    return part->nodes.empty() ? nullptr : part;
}

inline std::array<Tensor, 4> Graph::sdpa_fp8(const Operand &q, const Operand &k, const Operand &v,
                                             const Operand &descale_q, const Operand &descale_k,
                                             const Operand &descale_v, const Operand &descale_s, const Operand &scale_s,
                                             const Operand &scale_o, SDPA_fp8_attributes attributes) {
    attributes.set_descale_q(descale_q).set_descale_k(descale_k).set_descale_v(descale_v);
    attributes.set_descale_s(descale_s).set_scale_s(scale_s).set_scale_o(scale_o);
    auto made = attention("sdpa_fp8", q, k, v, attributes,
                          {{WEFT_ATTR_OPERATION_SDPA_FWD_AMAX_SDESC, "AMAX_S", true, true, false},
                           {WEFT_ATTR_OPERATION_SDPA_FWD_AMAX_ODESC, "AMAX_O", true, true, false}});
    return {made[0], made[1], made[2], made[3]};
}

inline std::array<Tensor, 3> Graph::sdpa_mxfp8(const Operand &q, const Operand &k, const Operand &v,
                                               const Operand &descale_q, const Operand &descale_k,
                                               const Operand &descale_v, SDPA_mxfp8_attributes attributes) {
    attributes.set_descale_q(descale_q).set_descale_k(descale_k).set_descale_v(descale_v);
    auto made = attention("sdpa_mxfp8", q, k, v, attributes,
                          {{WEFT_ATTR_OPERATION_SDPA_FWD_AMAX_ODESC, "AMAX_O", true, true, false}});
    return {made[0], made[1], made[2]};
}

inline std::vector<Tensor> Graph::gradients(const char *method, const std::array<Operand, 6> &operands,
                                            SDPA_backward_attributes &attributes, std::vector<detail::Result> more) {
    const auto &[q, k, v, o, dO, stats] = operands;
    attributes.resolve();
    check_padding(attributes, "seq_len_q", "seq_len_kv");
    if (attributes.gradient_modifier_ && !attributes.modifier_)
        attributes.refuse("set_score_mod_bprop() was called without set_score_mod(). Give the modifier of the forward "
                          "pass, too.");
    std::shared_ptr<detail::Part> part = modify(q.tensor(), k.tensor(), attributes);
    std::vector<detail::Result> results = {{WEFT_ATTR_OPERATION_SDPA_BWD_DQDESC, "DQ", false, true, true},
                                           {WEFT_ATTR_OPERATION_SDPA_BWD_DKDESC, "DK", false, true, true},
                                           {WEFT_ATTR_OPERATION_SDPA_BWD_DVDESC, "DV", false, true, true}};
    results.insert(results.end(), more.begin(), more.end());
    return keep({method,
                 WEFT_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR,
                 attributes,
                 WEFT_ATTR_OPERATION_SDPA_BWD_COMP_TYPE_EXT,
                 {{WEFT_ATTR_OPERATION_SDPA_BWD_QDESC, "q", q, true},
                  {WEFT_ATTR_OPERATION_SDPA_BWD_KDESC, "k", k, true},
                  {WEFT_ATTR_OPERATION_SDPA_BWD_VDESC, "v", v, true},
                  {WEFT_ATTR_OPERATION_SDPA_BWD_ODESC, "o", o, true},
                  {WEFT_ATTR_OPERATION_SDPA_BWD_DODDESC, "dO", dO, true},
                  {WEFT_ATTR_OPERATION_SDPA_BWD_STATSDESC, "stats", stats, true}},
                 std::move(results),
                 std::move(part)});
}

inline std::array<Tensor, 3> Graph::sdpa_backward(const Operand &q, const Operand &k, const Operand &v,
                                                  const Operand &o, const Operand &dO, const Operand &stats,
                                                  SDPA_backward_attributes attributes) {
    auto made = gradients("sdpa_backward", {q, k, v, o, dO, stats}, attributes, {});
    return {made[0], made[1], made[2]};
}

inline std::array<Tensor, 7>
Graph::sdpa_fp8_backward(const Operand &q, const Operand &k, const Operand &v, const Operand &o, const Operand &dO,
                         const Operand &stats, const Operand &descale_q, const Operand &descale_k,
                         const Operand &descale_v, const Operand &descale_o, const Operand &descale_dO,
                         const Operand &descale_s, const Operand &descale_dP, const Operand &scale_s,
                         const Operand &scale_dQ, const Operand &scale_dK, const Operand &scale_dV,
                         const Operand &scale_dP, SDPA_fp8_backward_attributes attributes) {
    attributes.set_descale_q(descale_q).set_descale_k(descale_k).set_descale_v(descale_v);
    attributes.set_descale_o(descale_o).set_descale_dO(descale_dO).set_descale_s(descale_s);
    attributes.set_descale_dP(descale_dP).set_scale_s(scale_s).set_scale_dP(scale_dP);
    attributes.set_scale_dQ(scale_dQ).set_scale_dK(scale_dK).set_scale_dV(scale_dV);
    auto made = gradients("sdpa_fp8_backward", {q, k, v, o, dO, stats}, attributes,
                          {{WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DQDESC_EXT, "AMAX_DQ", true, true, false},
                           {WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DKDESC_EXT, "AMAX_DK", true, true, false},
                           {WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DVDESC_EXT, "AMAX_DV", true, true, false},
                           {WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DPDESC_EXT, "AMAX_DP", true, true, false}});
    return {made[0], made[1], made[2], made[3], made[4], made[5], made[6]};
}

inline std::array<Tensor, 6> Graph::sdpa_mxfp8_backward(
    const Operand &q, const Operand &q_T, const Operand &k, const Operand &k_T, const Operand &v, const Operand &o_f16,
    const Operand &dO_f16, const Operand &dO, const Operand &dO_T, const Operand &stats, const Operand &descale_q,
    const Operand &descale_q_T, const Operand &descale_k, const Operand &descale_k_T, const Operand &descale_v,
    const Operand &descale_dO, const Operand &descale_dO_T, SDPA_mxfp8_backward_attributes attributes) {
    attributes.set_q_T(q_T).set_k_T(k_T).set_dO_T(dO_T).set_dO_f16(dO_f16);
    attributes.set_descale_q(descale_q).set_descale_k(descale_k).set_descale_v(descale_v);
    attributes.set_descale_q_T(descale_q_T).set_descale_k_T(descale_k_T);
    attributes.set_descale_dO(descale_dO).set_descale_dO_T(descale_dO_T);
    auto made = gradients("sdpa_mxfp8_backward", {q, k, v, o_f16, dO, stats}, attributes,
                          {{WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DQDESC_EXT, "AMAX_DQ", true, true, false},
                           {WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DKDESC_EXT, "AMAX_DK", true, true, false},
                           {WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DVDESC_EXT, "AMAX_DV", true, true, false}});
    return {made[0], made[1], made[2], made[3], made[4], made[5]};
}

/** The amax is over all dimensions; it has the rank of A. */
inline std::array<Tensor, 2> Graph::matmul_fp8(const Tensor &A, const Tensor &B, const Operand &descale_a,
                                               const Operand &descale_b, const Operand &scale_c,
                                               const Matmul_fp8_attributes &attributes) {
    std::vector<std::int64_t> all;
    for (std::size_t i = 0; A && i < A->get_dim().size(); i++)
        all.push_back(static_cast<std::int64_t>(i));
    Tensor wide = mul(mul(matmul(A, B, attributes), descale_a), descale_b);
    auto largest = Reduction_attributes().set_mode(ReductionMode_t::AMAX);
    if (!all.empty())
        largest.set_dims(all);
    return {mul(wide, scale_c), reduction(wide, largest)};
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

inline error_t Graph::lower(std::vector<detail::Descriptor> &operations) {
    if (nodes_.empty())
        return fail(error_code_t::INVALID_VALUE, "it has no operations. Add one, for example matmul(a, b).");
    /* Descriptors need dims to accept strides: if a result has only strides, its dims are inferred first. */
    bool has_incomplete = false;
    for (const detail::Node &node : nodes_)
        for (const detail::Result &result : node.results)
            if (result.tensor && result.tensor->lacks_dims()) {
                result.tensor->inferred_dims_.clear();
                has_incomplete = true;
            }
    if (has_incomplete) {
        std::vector<detail::Descriptor> first;
        WEFT_HPP_TRY(lower_once(first));
    }
    return lower_once(operations);
}

inline error_t Graph::lower_once(std::vector<detail::Descriptor> &operations) {
    const bool are_bits = are_booleans_bits_.value_or(detail::have_bit_masks(nodes_));
    detail::Lowering lowering(label(), io_type_, intermediate_type_, compute_type_, are_bits, mark_);
    WEFT_HPP_TRY(lowering.prepare(nodes_, {}));
    for (const Tensor &tensor : declared_)
        if (tensor->virtual_ == false && !tensor->is_result())
            return fail(error_code_t::INVALID_VALUE,
                        tensor->label() + ": set_output(true) was called, but no operation makes it. Call it on the "
                                          "result of an operation.");
    for (const detail::Node &node : nodes_)
        WEFT_HPP_TRY(lowering.operation(node, operations.emplace_back()));
    lowering.read_back();
    by_uid_.clear();
    for (const Tensor &tensor : lowering.tensors())
        by_uid_[tensor->get_uid()] = tensor;
    return {};
}

inline error_t Graph::validate() {
    std::vector<detail::Descriptor> operations;
    return lower(operations);
}

inline error_t Graph::build_operation_graph(weftHandle_t handle) {
    if (!handle)
        return fail(error_code_t::HANDLE_ERROR, "the handle is null. Give what weftCreate() or weft::Handle made.");
    handle_ = handle;
    std::vector<detail::Descriptor> operations;
    WEFT_HPP_TRY(lower(operations));
    graph_ = detail::Descriptor(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (!name_.empty())
        graph_.set_text(WEFT_ATTR_NAME_EXT, name_);
    if (!device_)
        graph_.set(WEFT_ATTR_OPERATIONGRAPH_HANDLE, WEFT_TYPE_HANDLE, handle);
    const char yes = 1;
    if (is_dynamic_)
        graph_.set(WEFT_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, WEFT_TYPE_BOOLEAN, yes);
    if (is_override_)
        graph_.set(WEFT_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, WEFT_TYPE_BOOLEAN, yes);
    graph_.link(WEFT_ATTR_OPERATIONGRAPH_OPS, operations);
    candidates_.clear();
    failures_.clear();
    plan_ = {};
    return placed(graph_.finalize(error_code_t::INVALID_VALUE));
}

inline error_t Graph::build_operation_graph() {
    error_t status;
    weftHandle_t handle = detail::default_handle(status);
    WEFT_HPP_TRY(status);
    return build_operation_graph(handle);
}

inline void Graph::add_candidate(detail::Descriptor config) {
    detail::Candidate made{std::move(config), {}};
    auto engines = made.config.get_descriptors(WEFT_ATTR_ENGINECFG_ENGINE, WEFT_BACKEND_ENGINE_DESCRIPTOR);
    if (engines.empty())
        return;
    made.engine = engines.front();
    made.id = made.engine.get_int(WEFT_ATTR_ENGINE_GLOBAL_INDEX);
    for (const auto &choice :
         made.config.get_descriptors(WEFT_ATTR_ENGINECFG_KNOB_CHOICES, WEFT_BACKEND_KNOB_CHOICE_DESCRIPTOR)) {
        int knob = choice.get_one<int>(WEFT_ATTR_KNOB_CHOICE_KNOB_TYPE, WEFT_TYPE_KNOB_TYPE);
        made.knobs[knob] = choice.get_int(WEFT_ATTR_KNOB_CHOICE_KNOB_VALUE);
    }
    for (const detail::Candidate &known : candidates_)
        if (known.tag() == made.tag())
            return;
    candidates_.push_back(std::move(made));
    is_filtered_ = false;
}

inline error_t Graph::ask(HeurMode_t mode) {
    if (mode == HeurMode_t::OPENSOURCE)
        mode = HeurMode_t::A;
    detail::Descriptor query(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR);
    query.set(WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, static_cast<int>(mode));
    query.link(WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
    if (sm_count_ > 0)
        query.set(WEFT_ATTR_ENGINEHEUR_SM_COUNT_TARGET, WEFT_TYPE_INT32, sm_count_);
    if (device_)
        query.link(WEFT_ATTR_ENGINEHEUR_DEVICEPROP, device_->made_);
    WEFT_HPP_TRY(query.finalize(error_code_t::HEURISTIC_QUERY_FAILED));
    for (auto &config : query.get_descriptors(WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_BACKEND_ENGINECFG_DESCRIPTOR))
        add_candidate(config);
    return {};
}

inline error_t Graph::create_execution_plans(const std::vector<HeurMode_t> &modes) {
    if (!graph_)
        return fail(error_code_t::HEURISTIC_QUERY_FAILED,
                    "create_execution_plans() needs the operation graph. Call build_operation_graph() first.");
    for (HeurMode_t mode : modes)
        WEFT_HPP_TRY(placed(ask(mode)));
    return candidates_.empty() ? none_left() : error_t{};
}

inline detail::Descriptor Graph::engine(std::int64_t id) const {
    detail::Descriptor made(WEFT_BACKEND_ENGINE_DESCRIPTOR);
    made.link(WEFT_ATTR_ENGINE_OPERATION_GRAPH, graph_);
    made.set(WEFT_ATTR_ENGINE_GLOBAL_INDEX, WEFT_TYPE_INT64, id);
    if (sm_count_ > 0)
        made.set(WEFT_ATTR_ENGINE_SM_COUNT_TARGET, WEFT_TYPE_INT32, sm_count_);
    if (device_)
        made.link(WEFT_ATTR_ENGINE_DEVICEPROP, device_->made_);
    return made;
}

inline error_t Graph::configure(std::int64_t id, const std::map<std::int64_t, std::int64_t> &knobs,
                                detail::Descriptor &made) const {
    detail::Descriptor engine = this->engine(id);
    WEFT_HPP_TRY(engine.finalize(error_code_t::INVALID_VALUE));
    made = detail::Descriptor(WEFT_BACKEND_ENGINECFG_DESCRIPTOR);
    made.link(WEFT_ATTR_ENGINECFG_ENGINE, engine);
    std::vector<detail::Descriptor> choices;
    for (const auto &[knob, value] : knobs) {
        detail::Descriptor &choice = choices.emplace_back(WEFT_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        choice.set(WEFT_ATTR_KNOB_CHOICE_KNOB_TYPE, WEFT_TYPE_KNOB_TYPE, static_cast<int>(knob));
        choice.set(WEFT_ATTR_KNOB_CHOICE_KNOB_VALUE, WEFT_TYPE_INT64, value);
        WEFT_HPP_TRY(choice.finalize(error_code_t::INVALID_VALUE));
    }
    if (!choices.empty())
        made.link(WEFT_ATTR_ENGINECFG_KNOB_CHOICES, choices);
    return made.finalize(error_code_t::INVALID_VALUE);
}

inline error_t Graph::create_execution_plan(std::int64_t engine,
                                            const std::unordered_map<KnobType_t, std::int64_t> &knobs) {
    std::map<std::int64_t, std::int64_t> values;
    for (const auto &[knob, value] : knobs)
        values[static_cast<int>(knob)] = value;
    detail::Descriptor made;
    WEFT_HPP_TRY(placed(configure(engine, values, made)));
    add_candidate(std::move(made));
    return {};
}

inline error_t Graph::get_engine_count(std::int64_t &count) const {
    if (!graph_)
        return fail(error_code_t::HEURISTIC_QUERY_FAILED,
                    "get_engine_count() needs the operation graph. Call build_operation_graph() first.");
    count = graph_.get_int(WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
    return {};
}

inline error_t Graph::get_knobs_for_engine(std::int64_t id, std::vector<Knob> &knobs) const {
    detail::Descriptor engine = this->engine(id);
    WEFT_HPP_TRY(placed(engine.finalize(error_code_t::INVALID_VALUE)));
    knobs.clear();
    for (const auto &info : engine.get_descriptors(WEFT_ATTR_ENGINE_KNOB_INFO, WEFT_BACKEND_KNOB_INFO_DESCRIPTOR))
        knobs.push_back({static_cast<KnobType_t>(info.get_one<int>(WEFT_ATTR_KNOB_INFO_TYPE, WEFT_TYPE_KNOB_TYPE)),
                         info.get_int(WEFT_ATTR_KNOB_INFO_MAXIMUM_VALUE),
                         info.get_int(WEFT_ATTR_KNOB_INFO_MINIMUM_VALUE), info.get_int(WEFT_ATTR_KNOB_INFO_STRIDE)});
    return {};
}

template <class Note>
Graph &Graph::filter_notes(const std::vector<Note> &notes, weftBackendAttributeName_t name,
                           weftBackendAttributeType_t type, bool is_wanted, const char *rule) {
    filters_.push_back([=](const detail::Candidate &candidate) {
        std::vector<int> has = candidate.engine.template get_all<int>(name, type);
        for (Note note : notes)
            if ((std::find(has.begin(), has.end(), static_cast<int>(note)) != has.end()) != is_wanted)
                return std::string(rule);
        return std::string();
    });
    is_filtered_ = false;
    return *this;
}

inline Graph &Graph::select_numeric_notes(const std::vector<NumericalNote_t> &notes) {
    return filter_notes(notes, WEFT_ATTR_ENGINE_NUMERICAL_NOTE, WEFT_TYPE_NUMERICAL_NOTE, true,
                        "select_numeric_notes()");
}
inline Graph &Graph::deselect_numeric_notes(const std::vector<NumericalNote_t> &notes) {
    return filter_notes(notes, WEFT_ATTR_ENGINE_NUMERICAL_NOTE, WEFT_TYPE_NUMERICAL_NOTE, false,
                        "deselect_numeric_notes()");
}
inline Graph &Graph::select_behavior_notes(const std::vector<BehaviorNote_t> &notes) {
    return filter_notes(notes, WEFT_ATTR_ENGINE_BEHAVIOR_NOTE, WEFT_TYPE_BEHAVIOR_NOTE, true,
                        "select_behavior_notes()");
}
inline Graph &Graph::deselect_behavior_notes(const std::vector<BehaviorNote_t> &notes) {
    return filter_notes(notes, WEFT_ATTR_ENGINE_BEHAVIOR_NOTE, WEFT_TYPE_BEHAVIOR_NOTE, false,
                        "deselect_behavior_notes()");
}

/** Drops plans whose tag (eng0_k2=3) or engine name (cpu.fast) contains one of these strings. */
inline Graph &Graph::deselect_engines(const std::vector<std::string> &names) {
    filters_.push_back([names](const detail::Candidate &candidate) {
        const std::string label = candidate.label();
        for (const std::string &each : names)
            if (label.find(each) != std::string::npos)
                return std::string("deselect_engines()");
        return std::string();
    });
    is_filtered_ = false;
    return *this;
}

inline void Graph::hold_to_workspace(detail::Candidate &candidate) const {
    if (most_workspace_ < 0 || candidate.workspace() <= most_workspace_)
        return;
    auto knobs = candidate.knobs;
    knobs[WEFT_KNOB_TYPE_WORKSPACE] = most_workspace_;
    detail::Descriptor config;
    if (configure(candidate.id, knobs, config).is_good())
        candidate.config = config, candidate.knobs = knobs;
}

inline std::string Graph::refusal(const detail::Candidate &candidate) const {
    if (most_workspace_ >= 0 && candidate.workspace() > most_workspace_)
        return "deselect_workspace_greater_than()";
    for (const Filter &filter : filters_)
        if (std::string rule = filter(candidate); !rule.empty())
            return rule;
    return {};
}

inline error_t Graph::check_support() {
    if (candidates_.empty() && !graph_)
        return fail(error_code_t::GRAPH_NOT_SUPPORTED,
                    "check_support() needs execution plans. Call create_execution_plans() first.");
    std::vector<detail::Candidate> kept;
    for (detail::Candidate &candidate : candidates_) {
        hold_to_workspace(candidate);
        if (std::string rule = refusal(candidate); rule.empty())
            kept.push_back(std::move(candidate));
        else
            failures_.push_back(candidate.label() + ": dropped by " + rule + ".");
    }
    candidates_ = std::move(kept);
    is_filtered_ = true;
    return candidates_.empty() ? none_left() : error_t{};
}

/** The error if no plan is left: all attempts with their reasons. */
inline error_t Graph::none_left() const {
    std::string reasons;
    for (const std::string &failure : failures_)
        reasons += " " + failure;
    return fail(error_code_t::GRAPH_NOT_SUPPORTED, "no plan is left." + reasons);
}

inline error_t Graph::plan_of(const detail::Candidate &candidate, bool with_code, detail::Descriptor &made) const {
    made = detail::Descriptor(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (device_)
        made.link(WEFT_ATTR_EXECUTION_PLAN_DEVICEPROP, device_->made_);
    else
        made.set(WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, handle_);
    made.link(WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, candidate.config);
    if (cache_ && !cache_->is_finalized())
        WEFT_HPP_TRY(placed(cache_->build()));
    if (cache_)
        made.link(WEFT_ATTR_EXECUTION_PLAN_KERNEL_CACHE, cache_->made_);
    if (with_code)
        made.set(WEFT_ATTR_EXECUTION_PLAN_WITH_CODE_EXT, WEFT_TYPE_BOOLEAN, char{1});
    return placed(made.finalize(error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED));
}

inline error_t Graph::at(std::int64_t index) const {
    const std::int64_t count = get_execution_plan_count();
    if (index >= 0 && index < count)
        return {};
    return fail(error_code_t::INVALID_VALUE,
                "there is no plan " + std::to_string(index) +
                    (count ? ": expected 0 to " + std::to_string(count - 1) + ". Choose one of these."
                           : ": no plans have been created. Call create_execution_plans() first."));
}

inline void Graph::choose(std::int64_t index) {
    chosen_ = index;
    plan_ = candidates_[static_cast<std::size_t>(index)].plan;
}

inline error_t Graph::build_plan_at_index(std::int64_t index) {
    if (!is_filtered_)
        WEFT_HPP_TRY(check_support());
    WEFT_HPP_TRY(at(index));
    detail::Candidate &candidate = candidates_[static_cast<std::size_t>(index)];
    if (!candidate.plan) {
        detail::Descriptor made;
        WEFT_HPP_TRY(plan_of(candidate, false, made));
        candidate.plan = made;
    }
    choose(index);
    return {};
}

inline error_t Graph::build_plans(BuildPlanPolicy_t policy, bool) {
    if (!is_filtered_)
        WEFT_HPP_TRY(check_support());
    std::int64_t first = -1;
    for (std::int64_t i = 0; i < get_execution_plan_count(); i++) {
        if (error_t failed = build_plan_at_index(i); failed.is_bad()) {
            failures_.push_back(candidates_[static_cast<std::size_t>(i)].label() + ": " + failed.err_msg);
            continue;
        }
        first = first < 0 ? i : first;
        if (policy == BuildPlanPolicy_t::HEURISTICS_CHOICE)
            break;
    }
    if (first < 0)
        return none_left();
    choose(first);
    return {};
}

inline error_t Graph::build(weftHandle_t handle, const std::vector<HeurMode_t> &modes, BuildPlanPolicy_t policy,
                            bool multithread) {
    WEFT_HPP_TRY(build_operation_graph(handle));
    WEFT_HPP_TRY(create_execution_plans(modes));
    WEFT_HPP_TRY(check_support());
    return build_plans(policy, multithread);
}

inline error_t Graph::build(const std::vector<HeurMode_t> &modes) {
    error_t status;
    weftHandle_t handle = detail::default_handle(status);
    WEFT_HPP_TRY(status);
    return build(handle, modes);
}

/* ---- Queries ----------------------------------------------------------------------------------------------------- */

inline std::int64_t Graph::get_workspace_size_plan_at_index(std::int64_t index) const {
    if (at(index).is_bad())
        return 0;
    return padded(candidates_[static_cast<std::size_t>(index)].workspace());
}

inline std::int64_t Graph::get_autotune_workspace_size() const {
    std::int64_t most = 0;
    for (const detail::Candidate &candidate : candidates_)
        if (candidate.plan)
            most = std::max(most, padded(candidate.plan.get_int(WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)));
    return most;
}

inline error_t Graph::get_plan_name_at_index(std::int64_t index, std::string &name) const {
    WEFT_HPP_TRY(at(index));
    name = candidates_[static_cast<std::size_t>(index)].tag();
    return {};
}

inline error_t Graph::get_engine_and_knobs_at_index(std::int64_t index, std::int64_t &engine,
                                                    std::unordered_map<KnobType_t, std::int64_t> &knobs) const {
    WEFT_HPP_TRY(at(index));
    const detail::Candidate &candidate = candidates_[static_cast<std::size_t>(index)];
    engine = candidate.id;
    knobs.clear();
    for (const auto &[knob, value] : candidate.knobs)
        knobs[static_cast<KnobType_t>(knob)] = value;
    return {};
}

inline error_t Graph::get_behavior_notes_for_plan_at_index(std::int64_t index,
                                                           std::vector<BehaviorNote_t> &notes) const {
    WEFT_HPP_TRY(at(index));
    notes.clear();
    const detail::Descriptor &engine = candidates_[static_cast<std::size_t>(index)].engine;
    for (int note : engine.get_all<int>(WEFT_ATTR_ENGINE_BEHAVIOR_NOTE, WEFT_TYPE_BEHAVIOR_NOTE))
        notes.push_back(static_cast<BehaviorNote_t>(note));
    return {};
}

inline error_t Graph::query_tensor_attributes_of_uid(std::int64_t uid, Tensor_attributes &found) const {
    auto known = by_uid_.find(uid);
    if (known == by_uid_.end())
        return fail(error_code_t::INVALID_TENSOR_NAME,
                    "no tensor has uid " + std::to_string(uid) + ". Ask after validate(), for a uid of this graph.");
    found = *known->second;
    return {};
}

/* ---- Execution --------------------------------------------------------------------------------------------------- */

/** Rejects memory that a plan would not use although the caller relies on it: for a constant, or for a result that is
    not computed. Memory for virtual tensors and for unknown uids is ignored. */
inline error_t Graph::refuse_memory(std::int64_t uid) const {
    if (uid == NO_TENSOR)
        return fail(error_code_t::INVALID_VARIANT_PACK, "execute: memory is given for nullptr, a result that is not "
                                                        "computed. Leave it out, or ask for the result.");
    auto known = by_uid_.find(uid);
    if (known != by_uid_.end() && known->second->get_has_compile_time_constant())
        return fail(error_code_t::INVALID_VARIANT_PACK,
                    "execute: memory is given for " + known->second->label() +
                        ", a constant of the plan. Leave it out, or declare it with "
                        "set_is_pass_by_value().");
    return {};
}

/** The addresses of a plan's tensors, in the plan's order. */
inline error_t Graph::slots(const detail::Descriptor &plan, const Pointers_by_uid &memory,
                            std::vector<std::uint64_t> &found) const {
    auto uids = plan.get_all<std::int64_t>(WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, WEFT_TYPE_INT64);
    for (std::int64_t uid : uids) {
        auto given = memory.find(uid);
        if (given == memory.end()) {
            auto known = by_uid_.find(uid);
            if (known != by_uid_.end() && known->second->is_runtime_) {
                found.push_back(reinterpret_cast<std::uintptr_t>(known->second->constant_->data()));
                continue;
            }
            return fail(
                error_code_t::INVALID_VARIANT_PACK,
                "execute: " +
                    (known == by_uid_.end() ? "the tensor of uid " + std::to_string(uid) : known->second->label()) +
                    " has no memory: every input and output needs an address. Add it to the variant pack.");
        }
        found.push_back(reinterpret_cast<std::uintptr_t>(given->second));
    }
    if (memory.size() > uids.size())
        for (const auto &[uid, address] : memory)
            WEFT_HPP_TRY(refuse_memory(uid));
    return {};
}

inline error_t Graph::run(weftHandle_t handle, const detail::Descriptor &plan, const Pointers_by_uid &memory,
                          void *workspace) const {
    WEFT_HPP_TRY(need_plan([] {}));
    weftStream_t stream = nullptr;
    if (weftStatus_t status = weftGetStream(handle, &stream); status != WEFT_STATUS_SUCCESS)
        return placed(detail::error_of(status, error_code_t::HANDLE_ERROR));
    std::vector<std::uint64_t> found;
    WEFT_HPP_TRY(slots(plan, memory, found));
    const weftStatus_t status =
        weftExecute(plan.get(), static_cast<std::int64_t>(found.size()), found.data(), aligned(workspace), stream);
    return placed(detail::error_of(status, error_code_t::INVALID_VARIANT_PACK));
}

inline error_t Graph::run_alone(const Pointers_by_uid &memory) const {
    WEFT_HPP_TRY(need_plan([] {}));
    weftStream_t stream = nullptr;
    void *workspace = nullptr;
    const auto bytes = static_cast<std::size_t>(get_workspace_size());
    WEFT_HPP_TRY(placed(detail::error_of(weftGetStream(handle_, &stream), error_code_t::HANDLE_ERROR)));
    WEFT_HPP_TRY(placed(detail::error_of(weftAllocateOnStream(handle_, bytes, stream, &workspace),
                                         error_code_t::GRAPH_EXECUTION_FAILED)));
    error_t done = run(handle_, plan_, memory, workspace);
    weftFreeOnStream(handle_, bytes, stream, workspace);
    return done;
}

inline error_t Graph::execute(weftHandle_t handle, const Pointers_by_uid &memory, void *workspace,
                              const std::vector<std::int64_t> &override_uids,
                              const std::vector<std::vector<std::int64_t>> &override_shapes,
                              const std::vector<std::vector<std::int64_t>> &override_strides) const {
    WEFT_HPP_TRY(need_plan([] {}));
    std::vector<std::int64_t> uids, shapes, strides;
    std::vector<void *> pointers;
    for (const auto &[uid, address] : memory) {
        uids.push_back(uid);
        pointers.push_back(address);
    }
    for (const auto &[uid, tensor] : by_uid_)
        if (tensor->is_runtime_ && !memory.count(uid)) {
            uids.push_back(uid);
            pointers.push_back(tensor->constant_->data());
        }
    for (const auto &shape : override_shapes)
        shapes.insert(shapes.end(), shape.begin(), shape.end());
    for (const auto &stride : override_strides)
        strides.insert(strides.end(), stride.begin(), stride.end());
    detail::Descriptor pack(WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, WEFT_TYPE_INT64, uids);
    pack.set(WEFT_ATTR_VARIANT_PACK_DATA_POINTERS, WEFT_TYPE_VOID_PTR, pointers);
    pack.set(WEFT_ATTR_VARIANT_PACK_WORKSPACE, WEFT_TYPE_VOID_PTR, aligned(workspace));
    pack.set(WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, WEFT_TYPE_INT64, override_uids);
    pack.set(WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, WEFT_TYPE_INT64, shapes);
    pack.set(WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, WEFT_TYPE_INT64, strides);
    WEFT_HPP_TRY(placed(pack.finalize(error_code_t::INVALID_VARIANT_PACK)));
    return placed(
        detail::error_of(weftBackendExecute(handle, plan_.get(), pack.get()), error_code_t::INVALID_VARIANT_PACK));
}

inline error_t Graph::execute_plan_at_index(weftHandle_t handle, const Pointers_by_uid &memory, void *workspace,
                                            std::int64_t index) const {
    WEFT_HPP_TRY(at(index));
    const detail::Candidate &candidate = candidates_[static_cast<std::size_t>(index)];
    if (!candidate.plan)
        return fail(error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED,
                    "plan " + std::to_string(index) + " is not built. Call build_plan_at_index().");
    return run(handle, candidate.plan, memory, workspace);
}

inline error_t Graph::freeze(const Pointers_by_uid &memory) const {
    WEFT_HPP_TRY(need_plan([] {}));
    for (const auto &[uid, address] : memory)
        WEFT_HPP_TRY(refuse_memory(uid));
    std::vector<std::uint64_t> found;
    for (std::int64_t uid :
         plan_.get_all<std::int64_t>(WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, WEFT_TYPE_INT64)) {
        auto given = memory.find(uid);
        found.push_back(given == memory.end() ? 0 : reinterpret_cast<std::uintptr_t>(given->second));
    }
    const auto count = static_cast<std::int64_t>(found.size());
    return placed(detail::error_of(weftFreeze(plan_.get(), count, found.data()), error_code_t::INVALID_VARIANT_PACK));
}

inline error_t Graph::autotune(weftHandle_t handle, const Pointers_by_uid &memory, void *workspace, void *) {
    WEFT_HPP_TRY(need_plan([] {}));
    weftStream_t stream = nullptr;
    WEFT_HPP_TRY(placed(detail::error_of(weftGetStream(handle, &stream), error_code_t::HANDLE_ERROR)));
    double best = std::numeric_limits<double>::infinity();
    std::int64_t fastest = chosen_;
    for (std::int64_t i = 0; i < get_execution_plan_count(); i++) {
        const detail::Descriptor &plan = candidates_[static_cast<std::size_t>(i)].plan;
        if (!plan)
            continue;
        std::vector<std::uint64_t> found;
        WEFT_HPP_TRY(slots(plan, memory, found));
        const auto count = static_cast<std::int64_t>(found.size());
        for (std::int64_t repeats : {1, 10}) { /* the first run is a warm-up */
            double seconds = 0;
            WEFT_HPP_TRY(placed(detail::error_of(
                weftMeasure(plan.get(), count, found.data(), aligned(workspace), stream, repeats, &seconds),
                error_code_t::GRAPH_EXECUTION_FAILED)));
            if (repeats > 1 && seconds < best)
                best = seconds, fastest = i;
        }
    }
    choose(fastest);
    return {};
}

/* ---- Serialization ----------------------------------------------------------------------------------------------- */

inline error_t Graph::serialize(std::vector<std::uint8_t> &data, bool with_code) const {
    WEFT_HPP_TRY(need_plan([] {}));
    detail::Descriptor plan = plan_;
    if (with_code && chosen_ >= 0)
        WEFT_HPP_TRY(plan_of(candidates_[static_cast<std::size_t>(chosen_)], true, plan));
    data = plan.get_all<std::uint8_t>(WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR);
    return data.empty() ? fail(error_code_t::UNSUPPORTED_GRAPH_FORMAT, "the plan cannot be saved.") : error_t{};
}

inline error_t Graph::deserialize(weftHandle_t handle, const std::vector<std::uint8_t> &data, bool with_code) {
    detail::Descriptor made(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (device_)
        made.link(WEFT_ATTR_EXECUTION_PLAN_DEVICEPROP, device_->made_);
    else
        made.set(WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, handle);
    if (with_code)
        made.set(WEFT_ATTR_EXECUTION_PLAN_WITH_CODE_EXT, WEFT_TYPE_BOOLEAN, char{1});
    made.set(WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, data);
    WEFT_HPP_TRY(placed(made.finalize(error_code_t::UNSUPPORTED_GRAPH_FORMAT)));
    handle_ = handle;
    plan_ = made;
    read_slots();
    return {};
}

} // namespace graph
} // namespace weft::frontend

#include "weft/weft_composed.hpp"
#include "weft/weft_json.hpp"
#include "weft/weft_score_modifiers.hpp"

#undef WEFT_HPP_TRY

/* Short names. */
namespace weft {
using namespace frontend;
using namespace frontend::graph;
} // namespace weft

#endif
