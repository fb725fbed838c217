/* SPDX-License-Identifier: Apache-2.0 */
/* The part of weft.hpp that writes graphs as JSON and reads them: the operations as added, without plans. Tensors and
   enumerators are numbers, those of the C API; a tensor is identified by its index in the list of tensors, or -1 for
   none. */
#ifndef WEFT_JSON_HPP
#define WEFT_JSON_HPP

#ifndef WEFT_HPP
#error "This is a part of weft.hpp. Include <weft/weft.hpp>."
#endif

namespace weft::frontend::detail {

/** A JSON value. */
struct Json {
    enum Kind { NOTHING, NUMBER, TEXT, LIST, MAP } kind = NOTHING;
    double number = 0;        /**< true is 1 */
    std::int64_t integer = 0; /**< the same, exact if it is an integer */
    std::string text;
    std::vector<Json> items;
    std::vector<std::string> keys; /**< for a map, as many as items */

    const Json &operator[](const char *key) const {
        static const Json nothing;
        for (std::size_t i = 0; i < keys.size(); i++)
            if (keys[i] == key)
                return items[i];
        return nothing;
    }
};

/** Parses a text; on failure, `wrong` has the position and what was expected. */
class Json_reader {
  public:
    explicit Json_reader(const std::string &text) : at_(text.c_str()), begin_(at_), end_(at_ + text.size()) {}
    std::string wrong;

    Json read() {
        Json made = value(0);
        skip();
        if (at_ != end_)
            expect("the end");
        return made;
    }

  private:
    enum { DEPTH_MAX = 64 };

    void skip() {
        while (at_ != end_ && std::strchr(" \t\r\n", *at_) && *at_)
            at_++;
    }
    void expect(const std::string &what) {
        if (wrong.empty())
            wrong = "at byte " + std::to_string(at_ - begin_) + " " + what + " is expected";
        at_ = end_;
    }
    bool take(char c) {
        skip();
        const bool is_there = at_ != end_ && *at_ == c;
        at_ += is_there;
        return is_there;
    }
    bool word(const char *letters) {
        const std::size_t length = std::strlen(letters);
        const bool is_there = static_cast<std::size_t>(end_ - at_) >= length && !std::strncmp(at_, letters, length);
        at_ += is_there ? length : 0;
        return is_there;
    }
    Json value(int depth) {
        Json made;
        skip();
        if (depth > DEPTH_MAX)
            expect("less depth");
        else if (at_ != end_ && (*at_ == '{' || *at_ == '['))
            made = list(depth);
        else if (at_ != end_ && *at_ == '"')
            made.kind = Json::TEXT, made.text = string();
        else if (word("true"))
            made.kind = Json::NUMBER, made.number = 1, made.integer = 1;
        else if (word("false"))
            made.kind = Json::NUMBER;
        else if (!word("null"))
            made = figure();
        return made;
    }
    Json list(int depth) {
        Json made;
        const bool is_map = *at_++ == '{';
        const char close = is_map ? '}' : ']';
        made.kind = is_map ? Json::MAP : Json::LIST;
        if (take(close))
            return made;
        do {
            skip();
            if (is_map) {
                made.keys.push_back(string());
                if (!take(':'))
                    expect("':'");
            }
            made.items.push_back(value(depth + 1));
        } while (take(','));
        if (!take(close))
            expect(std::string("',' or '") + close + "'");
        return made;
    }
    std::string string() {
        std::string made;
        if (!take('"'))
            expect("a string");
        while (at_ != end_ && *at_ != '"') {
            if (*at_ == '\\')
                made += escaped();
            else
                made += *at_++;
        }
        if (!take('"'))
            expect("'\"'");
        return made;
    }
    /** The last byte of \u: only control characters are written in this form. */
    char escaped() {
        static const char letters[] = "ntrbf", meant[] = "\n\t\r\b\f";
        if (++at_ == end_)
            return 0;
        if (*at_ == 'u' && end_ - at_ > 4) {
            at_ += 5;
            return static_cast<char>(std::strtol(std::string(at_ - 2, 2).c_str(), nullptr, 16));
        }
        const char *letter = *at_ ? std::strchr(letters, *at_) : nullptr;
        const char c = letter ? meant[letter - letters] : *at_;
        at_++;
        return c;
    }
    Json figure() {
        Json made;
        char *stop = nullptr;
        made.kind = Json::NUMBER;
        made.number = at_ == end_ ? 0 : std::strtod(at_, &stop);
        if (at_ == end_ || stop == at_)
            return expect("a value"), made;
        made.integer = std::strtoll(at_, nullptr, 10);
        at_ = stop;
        return made;
    }

    const char *at_, *begin_, *end_;
};

/** Writes and reads the parts of a graph. */
class Saving {
  public:
    explicit Saving(std::shared_ptr<char> mark) : mark_(std::move(mark)) {}
    std::string wrong; /**< why the graph cannot be written, or the text cannot be read */

    /* ---- Writing ---- */

    std::string write(const std::vector<Node> &nodes, const std::vector<Tensor> &declared, const std::string &context) {
        for (const Tensor &tensor : declared)
            place(tensor);
        const std::string operations = list(nodes, [this](const Node &node) { return written(node); });
        std::string tensors;
        for (std::size_t i = 0; i < tensors_.size(); i++) /* an offset of rows may add one */
            tensors += (i ? ",\n  " : "\n  ") + written(*tensors_[i]);
        return "{\"weft_graph\": 1, " + context + ",\n \"tensors\": [" + tensors + "],\n \"nodes\": " + operations +
               "}\n";
    }
    static std::string quoted(const std::string &text) {
        std::string made = "\"";
        for (char c : text) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned char>(c));
            if (static_cast<unsigned char>(c) < ' ')
                made += escaped;
            else
                made += (c == '"' || c == '\\' ? "\\" : "") + std::string(1, c);
        }
        return made + "\"";
    }

    /* ---- Reading ---- */

    void read(const Json &text, std::vector<Node> &nodes, std::vector<Tensor> &declared) {
        if (text["weft_graph"].integer != 1)
            fail("\"weft_graph\": 1 is expected, the form of this version");
        const std::vector<Json> &described = text["tensors"].items;
        for (std::size_t i = 0; i < described.size(); i++)
            tensors_.push_back(std::make_shared<graph::Tensor_attributes>());
        for (std::size_t i = 0; i < described.size(); i++)
            read(described[i], *tensors_[i]);
        for (const Json &each : text["nodes"].items)
            nodes.push_back(node(each));
        for (const Tensor &tensor : tensors_)
            if (!tensor->is_result() && !tensor->number_)
                declared.push_back(tensor);
    }
    /** Names of operands and results, which the nodes point to. */
    std::shared_ptr<std::set<std::string>> words = std::make_shared<std::set<std::string>>();

  private:
    /* Bits that these enumerations can represent. */
    enum : std::int64_t { ATTRIBUTE_MOST = 16383, TYPE_MOST = 63, KIND_MOST = 63 };

    void fail(const std::string &what) {
        if (wrong.empty())
            wrong = what;
    }
    template <class List, class Each> static std::string list(const List &items, Each &&each) {
        std::string made = "[";
        for (const auto &item : items)
            made += (made.size() > 1 ? ", " : "") + each(item);
        return made + "]";
    }
    static std::string list(const std::vector<std::int64_t> &items) {
        return list(items, [](std::int64_t item) { return std::to_string(item); });
    }
    static std::string figure(double number) {
        char text[40];
        std::snprintf(text, sizeof text, "%.17g", number);
        return std::isfinite(number) ? text : quoted(text);
    }
    static double figure(const Json &text) {
        return text.kind == Json::TEXT ? std::strtod(text.text.c_str(), nullptr) : text.number;
    }
    static std::vector<std::int64_t> numbers(const Json &text) {
        std::vector<std::int64_t> made;
        for (const Json &item : text.items)
            made.push_back(item.integer);
        return made;
    }
    std::string place(const Tensor &tensor) {
        if (!tensor)
            return "-1";
        auto found = std::find(tensors_.begin(), tensors_.end(), tensor);
        if (found == tensors_.end())
            found = tensors_.insert(found, tensor);
        return std::to_string(found - tensors_.begin());
    }
    Tensor tensor(const Json &place) {
        if (place.kind != Json::NUMBER || place.integer < -1 ||
            place.integer >= static_cast<std::int64_t>(tensors_.size()))
            return fail("a tensor's place is " + std::to_string(place.integer) + ", there are " +
                        std::to_string(tensors_.size())),
                   nullptr;
        return place.integer < 0 ? nullptr : tensors_[static_cast<std::size_t>(place.integer)];
    }
    /** A number that the C enumeration can represent; the library checks whether it is an enumerator. */
    template <class Enum> Enum named(const Json &text, std::int64_t most) {
        const bool fits = text.integer >= 0 && text.integer <= most;
        if (!fits)
            fail("a number of the C API is " + std::to_string(text.integer) + ", at most " + std::to_string(most) +
                 " is expected");
        return static_cast<Enum>(fits ? text.integer : 0);
    }
    const char *word(const Json &text) const { return words->insert(text.text).first->c_str(); }

    /** Bytes of an element of an attribute, or of each half of a fraction; 0 if it cannot be saved. */
    static std::size_t unit(int type) {
        switch (type) {
        case WEFT_TYPE_BOOLEAN:
        case WEFT_TYPE_CHAR:
            return 1;
        case WEFT_TYPE_INT64:
        case WEFT_TYPE_DOUBLE:
        case WEFT_TYPE_FRACTION:
            return 8;
        case WEFT_TYPE_HANDLE:
        case WEFT_TYPE_VOID_PTR:
        case WEFT_TYPE_BACKEND_DESCRIPTOR:
            return 0;
        default:
            return 4;
        }
    }
    static std::string element(int type, const unsigned char *bytes) {
        double wide = 0;
        float narrow = 0;
        std::int64_t integer = 0;
        std::int32_t word = 0;
        if (type == WEFT_TYPE_DOUBLE)
            return std::memcpy(&wide, bytes, sizeof wide), figure(wide);
        if (type == WEFT_TYPE_FLOAT)
            return std::memcpy(&narrow, bytes, sizeof narrow), figure(static_cast<double>(narrow));
        if (unit(type) == 1)
            return std::to_string(*bytes);
        if (unit(type) == 4)
            return std::memcpy(&word, bytes, sizeof word), std::to_string(word);
        return std::memcpy(&integer, bytes, sizeof integer), std::to_string(integer);
    }
    static void put(std::vector<unsigned char> &bytes, int type, const Json &text) {
        const double wide = figure(text);
        const auto narrow = static_cast<float>(wide);
        const auto word = static_cast<std::int32_t>(text.integer);
        const auto byte = static_cast<unsigned char>(text.integer);
        const void *from = type == WEFT_TYPE_DOUBLE  ? static_cast<const void *>(&wide)
                           : type == WEFT_TYPE_FLOAT ? static_cast<const void *>(&narrow)
                           : unit(type) == 1         ? static_cast<const void *>(&byte)
                           : unit(type) == 4         ? static_cast<const void *>(&word)
                                                     : static_cast<const void *>(&text.integer);
        const auto *first = static_cast<const unsigned char *>(from);
        bytes.insert(bytes.end(), first, first + unit(type));
    }

    std::string written(const Setting &setting) {
        const std::size_t step = unit(setting.type);
        if (!step)
            fail("attribute " + std::to_string(setting.name) + " holds an address, which no text can say");
        std::string made = "{\"name\": " + std::to_string(setting.name) +
                           ", \"type\": " + std::to_string(setting.type) +
                           ", \"count\": " + std::to_string(setting.count) + ", \"values\": [";
        for (std::size_t i = 0; step && i < setting.bytes.size(); i += step)
            made += (i ? ", " : "") + element(setting.type, &setting.bytes[i]);
        return made + "]}";
    }
    Setting setting(const Json &text) {
        Setting made{named<weftBackendAttributeName_t>(text["name"], ATTRIBUTE_MOST),
                     named<weftBackendAttributeType_t>(text["type"], TYPE_MOST),
                     static_cast<std::size_t>(text["count"].integer),
                     {}};
        const std::vector<Json> &values = text["values"].items;
        const std::size_t parts = made.type == WEFT_TYPE_FRACTION ? 2 : 1;
        if (!unit(made.type) || made.count * parts != values.size())
            fail("attribute " + std::to_string(made.name) + " has " + std::to_string(values.size()) + " values for " +
                 std::to_string(made.count) + " elements of type " + std::to_string(made.type));
        for (const Json &value : values)
            put(made.bytes, made.type, value);
        return made;
    }

    std::string written(const graph::Tensor_attributes &t) {
        std::string made = "{\"name\": " + quoted(t.name_) + ", \"data_type\": " + std::to_string(int(t.type_)) +
                           ", \"dim\": " + list(t.dims_) + ", \"stride\": " + list(t.strides_);
        made += t.uid_ ? ", \"uid\": " + std::to_string(*t.uid_) : "";
        made += t.virtual_ ? *t.virtual_ ? ", \"is_virtual\": true" : ", \"is_virtual\": false" : "";
        made += t.by_value_ ? ", \"is_pass_by_value\": true" : "";
        made += t.is_integer_ ? ", \"is_integer\": true" : "";
        made += t.number_ ? ", \"number\": " + figure(*t.number_) : "";
        made += t.alignment_ ? ", \"alignment\": " + std::to_string(t.alignment_) : "";
        if (t.constant_ && !t.number_) /* that of a number is created again */
            made += ", \"constant\": " +
                    list(*t.constant_, [](unsigned char byte) { return std::to_string(static_cast<int>(byte)); });
        if (t.vector_.first != 1)
            made += ", \"vector\": " + list({t.vector_.first, t.vector_.second});
        if (t.reordering_ != TensorReordering_t::NONE)
            made += ", \"reordering_type\": " + std::to_string(int(t.reordering_));
        made += t.is_runtime_ ? ", \"is_runtime\": true" : "";
        if (t.ragged_multiplier_ != 1)
            made += ", \"ragged_offset_multiplier\": " + std::to_string(t.ragged_multiplier_);
        return made + (t.ragged_offset_ ? ", \"ragged_offset\": " + place(t.ragged_offset_) : "") + "}";
    }
    void read(const Json &text, graph::Tensor_attributes &t) {
        t.name_ = text["name"].text;
        t.type_ = static_cast<DataType_t>(text["data_type"].integer);
        t.dims_ = numbers(text["dim"]), t.strides_ = numbers(text["stride"]);
        if (text["uid"].kind == Json::NUMBER)
            t.uid_ = text["uid"].integer;
        if (text["is_virtual"].kind == Json::NUMBER)
            t.virtual_ = text["is_virtual"].integer != 0;
        t.is_runtime_ = text["is_runtime"].integer != 0;
        if (text["ragged_offset_multiplier"].kind == Json::NUMBER)
            t.ragged_multiplier_ = text["ragged_offset_multiplier"].integer;
        t.by_value_ = text["is_pass_by_value"].integer != 0, t.is_integer_ = text["is_integer"].integer != 0;
        if (text["number"].kind != Json::NOTHING)
            t.number_ = figure(text["number"]);
        t.alignment_ = text["alignment"].integer;
        const std::vector<std::int64_t> bytes = numbers(text["constant"]), pair = numbers(text["vector"]);
        if (!bytes.empty())
            t.constant_.emplace();
        for (std::size_t i = 0; i < bytes.size() && i < t.constant_->size(); i++)
            (*t.constant_)[i] = static_cast<unsigned char>(bytes[i]);
        if (pair.size() == 2)
            t.vector_ = {pair[0], pair[1]};
        if (text["reordering_type"].kind == Json::NUMBER)
            t.reordering_ = static_cast<TensorReordering_t>(text["reordering_type"].integer);
        if (text["ragged_offset"].kind == Json::NUMBER)
            t.ragged_offset_ = tensor(text["ragged_offset"]);
    }

    std::string written(const Input &input) {
        return "{\"name\": " + std::to_string(input.name) + ", \"key\": " + quoted(input.key) +
               ", \"needed\": " + (input.needed ? "true" : "false") +
               ", \"tensors\": " + list(input.tensors, [this](const Tensor &each) { return place(each); }) + "}";
    }
    std::string written(const Result &result) {
        return "{\"name\": " + std::to_string(result.name) + ", \"key\": " + quoted(result.key) +
               ", \"inferred\": " + (result.is_inferred ? "true" : "false") +
               ", \"computed\": " + (result.is_computed ? "true" : "false") +
               ", \"needed\": " + (result.needed ? "true" : "false") + ", \"tensor\": " + place(result.tensor) + "}";
    }
    std::string written(const Node &node) {
        const auto each = [this](const auto &item) { return written(item); };
        std::string made = "\n  {\"method\": " + quoted(node.method) + ", \"kind\": " + std::to_string(node.kind) +
                           ", \"name\": " + quoted(node.settings.name_);
        if (!node.settings.refusal_.empty())
            fail(node.label() + ": " + node.settings.refusal_);
        if (node.compute_type)
            made += ", \"compute_attribute\": " + std::to_string(*node.compute_type);
        made += ", \"compute_data_type\": " + std::to_string(int(node.settings.compute_type_));
        made += ",\n   \"attributes\": " + list(node.settings.settings_, each);
        made += ",\n   \"inputs\": " + list(node.inputs, each) + ",\n   \"results\": " + list(node.results, each);
        if (const Part *part = node.part.get())
            made +=
                ",\n   \"part\": {\"queries\": " + place(part->queries) + ", \"keys\": " + place(part->keys) +
                ", \"scores\": " + place(part->scores) + ", \"result\": " + place(part->result) +
                (part->slope ? ", \"slope\": " + place(part->slope) + ", \"slope_result\": " + place(part->slope_result)
                             : "") +
                ", \"is_paged\": " + (part->is_paged ? "true" : "false") +
                ", \"paged_keys\": " + std::to_string(part->paged_keys) + ", \"nodes\": " + list(part->nodes, each) +
                "}";
        return made + "}";
    }
    Node node(const Json &text) {
        Node made{text["method"].text, named<weftBackendDescriptorType_t>(text["kind"], KIND_MOST), {}, {}, {}, {}};
        made.settings.name_ = text["name"].text;
        made.settings.compute_type_ = static_cast<DataType_t>(text["compute_data_type"].integer);
        if (text["compute_attribute"].kind == Json::NUMBER)
            made.compute_type = named<weftBackendAttributeName_t>(text["compute_attribute"], ATTRIBUTE_MOST);
        for (const Json &each : text["attributes"].items)
            made.settings.settings_.push_back(setting(each));
        for (const Json &each : text["inputs"].items) {
            std::vector<Tensor> tensors;
            for (const Json &place : each["tensors"].items)
                tensors.push_back(tensor(place));
            made.inputs.emplace_back(named<weftBackendAttributeName_t>(each["name"], ATTRIBUTE_MOST), word(each["key"]),
                                     std::move(tensors), each["needed"].integer != 0);
        }
        for (const Json &each : text["results"].items)
            made.results.push_back(result(each));
        if (text["part"].kind == Json::MAP)
            made.part = part(text["part"]);
        return made;
    }
    Result result(const Json &text) {
        Result made{named<weftBackendAttributeName_t>(text["name"], ATTRIBUTE_MOST),
                    word(text["key"]),
                    text["inferred"].integer != 0,
                    text["computed"].integer != 0,
                    text["needed"].integer != 0,
                    tensor(text["tensor"])};
        if (made.tensor)
            made.tensor->mark_ = mark_;
        return made;
    }
    std::shared_ptr<Part> part(const Json &text) {
        auto made = std::make_shared<Part>();
        made->queries = tensor(text["queries"]), made->keys = tensor(text["keys"]);
        made->scores = tensor(text["scores"]), made->result = tensor(text["result"]);
        made->is_paged = text["is_paged"].integer != 0, made->paged_keys = text["paged_keys"].integer;
        for (const Json &each : text["nodes"].items)
            made->nodes.push_back(node(each));
        if (!made->queries || !made->keys || !made->scores || !made->result)
            return fail("a score modifier lacks one of queries, keys, scores, result"), nullptr;
        made->scores->mark_ = mark_;
        if (text["slope"].kind == Json::NUMBER) {
            made->slope = tensor(text["slope"]), made->slope_result = tensor(text["slope_result"]);
            if (!made->slope || !made->slope_result)
                return fail("the gradient of a score modifier lacks an end"), nullptr;
            made->slope->mark_ = mark_;
        }
        return made;
    }

    std::vector<Tensor> tensors_;
    std::shared_ptr<char> mark_;
};

} // namespace weft::frontend::detail

namespace weft::frontend::graph {

/** Reads the tensors of a loaded plan, for query_tensor_attributes_of_uid(). */
inline void Graph::read_slots() {
    static const std::map<std::string, DataType_t> types = {
        {"f32", DataType_t::FLOAT},     {"f64", DataType_t::DOUBLE},        {"f16", DataType_t::HALF},
        {"bf16", DataType_t::BFLOAT16}, {"e4m3", DataType_t::FP8_E4M3},     {"e5m2", DataType_t::FP8_E5M2},
        {"e8m0", DataType_t::FP8_E8M0}, {"e2m1", DataType_t::FP4_E2M1},     {"i4", DataType_t::INT4},
        {"u4", DataType_t::UINT4},      {"i8", DataType_t::INT8},           {"u8", DataType_t::UINT8},
        {"i32", DataType_t::INT32},     {"u32", DataType_t::UINT32},        {"i64", DataType_t::INT64},
        {"bool1", DataType_t::BOOLEAN}, {"bool8", DataType_t::BYTE_BOOLEAN}};
    by_uid_.clear();
    const detail::Json slots = detail::Json_reader(plan_.get_text(WEFT_ATTR_EXECUTION_PLAN_SLOTS_EXT)).read();
    for (const detail::Json &each : slots["tensors"].items) {
        std::vector<std::int64_t> dims, strides;
        for (const detail::Json &extent : each["dims"].items)
            dims.push_back(extent.integer);
        for (const detail::Json &stride : each["strides"].items)
            strides.push_back(stride.integer);
        auto tensor = std::make_shared<Tensor_attributes>();
        tensor->set_uid(each["uid"].integer).set_name(each["name"].text).set_dim(dims).set_stride(strides);
        tensor->set_is_pass_by_value(each["by_value"].integer != 0).set_alignment(each["alignment"].integer);
        if (auto type = types.find(each["type"].text); type != types.end())
            tensor->set_data_type(type->second);
        by_uid_[each["uid"].integer] = std::move(tensor);
    }
}

inline error_t Graph::serialize(std::string &json) const {
    detail::Saving saving(mark_);
    const std::string context =
        "\"name\": " + detail::Saving::quoted(name_) + ", \"io_data_type\": " + std::to_string(int(io_type_)) +
        ", \"intermediate_data_type\": " + std::to_string(int(intermediate_type_)) +
        ", \"compute_data_type\": " + std::to_string(int(compute_type_)) +
        ", \"sm_count\": " + std::to_string(sm_count_) + ", \"is_dynamic\": " + (is_dynamic_ ? "true" : "false") +
        ", \"is_override\": " + (is_override_ ? "true" : "false") +
        (are_booleans_bits_ ? std::string(", \"are_booleans_bits\": ") + (*are_booleans_bits_ ? "true" : "false") : "");
    json = saving.write(nodes_, declared_, context);
    return saving.wrong.empty()
               ? error_t{}
               : fail(error_code_t::UNSUPPORTED_GRAPH_FORMAT, "it cannot be written as JSON: " + saving.wrong + ".");
}

inline error_t Graph::deserialize(const std::string &json) {
    detail::Json_reader reader(json);
    const detail::Json text = reader.read();
    Graph made;
    detail::Saving saving(made.mark_);
    if (reader.wrong.empty())
        saving.read(text, made.nodes_, made.declared_);
    if (const std::string &wrong = reader.wrong.empty() ? saving.wrong : reader.wrong; !wrong.empty())
        return fail(error_code_t::UNSUPPORTED_GRAPH_FORMAT,
                    "the text is not what serialize() wrote: " + wrong + ". Give that text.");
    made.name_ = text["name"].text;
    made.io_type_ = static_cast<DataType_t>(text["io_data_type"].integer);
    made.intermediate_type_ = static_cast<DataType_t>(text["intermediate_data_type"].integer);
    made.compute_type_ = static_cast<DataType_t>(text["compute_data_type"].integer);
    made.sm_count_ = static_cast<std::int32_t>(text["sm_count"].integer);
    made.is_dynamic_ = text["is_dynamic"].integer != 0, made.is_override_ = text["is_override"].integer != 0;
    if (text["are_booleans_bits"].kind == detail::Json::NUMBER)
        made.are_booleans_bits_ = text["are_booleans_bits"].integer != 0;
    made.words_ = saving.words;
    made.device_ = device_, made.cache_ = cache_;
    *this = std::move(made);
    return {};
}

} // namespace weft::frontend::graph

#endif
