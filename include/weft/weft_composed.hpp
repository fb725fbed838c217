/* SPDX-License-Identifier: Apache-2.0 */
/* The part of weft.hpp with operations of cuDNN's frontend that consist of several operations of Weft. */
#ifndef WEFT_COMPOSED_HPP
#define WEFT_COMPOSED_HPP

#ifndef WEFT_HPP
#error "This is a part of weft.hpp. Include <weft/weft.hpp>."
#endif

namespace weft::frontend::graph {

/** Infers dims and strides of results of earlier operations, and leaves everything else unchanged: uids are assigned
    when the graph is built, and errors are reported then, too. */
inline void Graph::infer(const std::vector<Tensor> &tensors) {
    auto is_known = [](const Tensor &tensor) { return tensor && (!tensor->is_result() || !tensor->get_dim().empty()); };
    if (std::all_of(tensors.begin(), tensors.end(), is_known))
        return;
    std::vector<Tensor> unnumbered;
    auto note = [&unnumbered](const Tensor &tensor) {
        if (tensor && !tensor->uid_)
            unnumbered.push_back(tensor);
    };
    std::vector<detail::Descriptor> operations;
    detail::Lowering lowering(label(), io_type_, intermediate_type_, compute_type_, false, mark_);
    for (const detail::Node &node : nodes_) {
        for (const detail::Input &input : node.inputs)
            for (const Tensor &tensor : input.tensors) {
                note(tensor);
                if (tensor)
                    note(tensor->ragged_offset_);
            }
        for (const detail::Result &result : node.results)
            note(result.tensor);
    }
    bool is_good = lowering.prepare(nodes_, {}).is_good();
    for (const detail::Node &node : nodes_)
        is_good = is_good && lowering.operation(node, operations.emplace_back()).is_good();
    lowering.read_back();
    for (const Tensor &tensor : unnumbered)
        tensor->clear_uid();
}

/** An operation that validate() and build() reject by name. */
template <class Attributes> Tensor Graph::refused(const char *method, Attributes attributes, const std::string &rule) {
    attributes.refuse(rule);
    return record(method, WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, attributes, std::nullopt, {},
                  {{WEFT_ATTR_OPERATION_POINTWISE_YDESC, "OUT_0", false, true, true}})[0];
}

/* ---- Rotary position embedding ----------------------------------------------------------------------------------- */

/** y = output_scale (x cos + turned sin), where turned consists of the halves of the rotated elements, (-second,
    first). */
template <class Attributes>
Tensor Graph::rotated(const char *method, const Tensor &x, const Tensor &freqs, double sign,
                      const Attributes &attributes) {
    infer({x, freqs});
    if (!x || !freqs || x->get_dim().size() != 4 || freqs->get_dim().size() != 4)
        return refused(method, attributes,
                       "its input is [B, H, S, D] or [S, B, H, D], and freqs [S, 1, 1, rope_dim]. Set their dims.");
    const std::vector<std::int64_t> dims = x->get_dim(), strides = x->get_stride();
    const std::int64_t extent = dims[3], width = attributes.rope_dim ? attributes.rope_dim : extent;
    const std::int64_t first = extent - width, middle = first + width / 2, positions = freqs->get_dim()[0];
    if (width % 2 || width < 2 || first < 0)
        return refused(method, attributes,
                       "rope_dim is " + std::to_string(width) + ", and heads have " + std::to_string(extent) +
                           " elements. Give an even number of them.");
    if (positions != dims[0] && positions != dims[2])
        return refused(method, attributes,
                       "freqs has " + std::to_string(positions) + " positions, and the input is " +
                           detail::list_text(dims) + ". Give [B, H, S, D] or [S, B, H, D], and freqs [S, 1, 1, D].");
    auto cut = [&](std::int64_t start, std::int64_t stop) {
        return slice(x, Slice_attributes().set_slices({{0, dims[0]}, {0, dims[1]}, {0, dims[2]}, {start, stop}}));
    };
    auto joined = [&](std::vector<Tensor> parts, Concatenate_attributes options) {
        return concatenate(parts, options.set_axis(3));
    };
    Tensor angles = freqs;
    if (positions == dims[2])
        angles = transpose(freqs, Transpose_attributes().set_permutation({1, 2, 0, 3}));
    const double scale = static_cast<double>(attributes.output_scale);
    Tensor turned = joined({neg(cut(middle, extent)), cut(first, middle)}, {});
    auto last = Pointwise_attributes().set_compute_data_type(attributes.compute_type_);
    Tensor along = mul(cut(first, extent), mul(cos(angles), scale));
    Tensor across = mul(turned, mul(sin(angles), sign * scale));
    Tensor made = add(across, along, first ? last : last.set_name(attributes.name_));
    if (first)
        made = joined({mul(cut(0, first), scale), made}, Concatenate_attributes().set_name(attributes.name_));
    if (!strides.empty() && std::find(strides.begin(), strides.end(), 0) == strides.end())
        made->set_dim(dims).set_stride(strides);
    return made;
}

inline Tensor Graph::rope(const Tensor &input, const Tensor &freqs, const RoPE_attributes &attributes) {
    return rotated("rope", input, freqs, 1.0, attributes);
}

inline Tensor Graph::rope_backward(const Tensor &dY, const Tensor &freqs, const RoPE_backward_attributes &attributes) {
    return rotated("rope_backward", dY, freqs, -1.0, attributes);
}

/* ---- Groups of rows ---------------------------------------------------------------------------------------------- */

/** The index of each row of [1, M, N], as [1, M, 1]. */
inline Tensor Graph::row_numbers(const Tensor &input) {
    return gen_index(slice(input, Slice_attributes().set_slices({{0, 1}, {0, input->get_dim()[1]}, {0, 1}})), 1);
}

/** The sums of each group, [E, 1, N]: products of its rows with a row of ones. */
inline Tensor Graph::group_sums(const Tensor &input, ReductionMode_t mode, const Tensor &group_offset) {
    Tensor ones = binary_select(1.0, 0.0, cmp_ge(row_numbers(input), 0));
    Tensor summed = mode == ReductionMode_t::NORM1   ? abs(input)
                    : mode == ReductionMode_t::NORM2 ? mul(input, input)
                                                     : input;
    Tensor total = moe_grouped_matmul_bwd(summed, ones, group_offset);
    if (mode == ReductionMode_t::NORM2)
        return sqrt(total);
    if (mode == ReductionMode_t::AVG)
        return div(total, moe_grouped_matmul_bwd(ones, ones, group_offset));
    return total;
}

/** Without groups, a single operation. Modes other than sums reduce all rows for each group, with rows of other groups
    replaced by the identity. */
inline Tensor Graph::reduction(const Operand &operand, const Reduction_attributes &attributes) {
    auto reduce = [&](const Operand &input) {
        return record("reduction", WEFT_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, attributes,
                      WEFT_ATTR_REDUCTION_COMP_TYPE, {{WEFT_ATTR_OPERATION_REDUCTION_XDESC, "input", input, true}},
                      {{WEFT_ATTR_OPERATION_REDUCTION_YDESC, "Y", false, true, true}})[0];
    };
    const Tensor &input = operand.tensor(), &offset = attributes.group_offset_;
    if (!offset)
        return reduce(operand);
    static const std::map<ReductionMode_t, double> neutral = {
        {ReductionMode_t::MAX, -std::numeric_limits<double>::infinity()},
        {ReductionMode_t::MIN, std::numeric_limits<double>::infinity()},
        {ReductionMode_t::AMAX, 0.0},
        {ReductionMode_t::MUL, 1.0},
        {ReductionMode_t::MUL_NO_ZEROS, 1.0}};
    infer({input, offset});
    const std::vector<std::int64_t> dims = input ? input->get_dim() : std::vector<std::int64_t>(),
                                    of = offset->get_dim();
    if (dims.size() != 3 || dims[0] != 1 || of.size() != 3 || of[1] != 1 || of[2] != 1)
        return refused("reduction", attributes,
                       "with set_group_offset() its input is [1, M, N] and the offsets [E, 1, 1]; they are " +
                           detail::list_text(dims) + " and " + detail::list_text(of) + ". Reshape them.");
    const ReductionMode_t mode = attributes.get_mode().value_or(ReductionMode_t::NOT_SET);
    Tensor groups;
    if (auto known = neutral.find(mode); known != neutral.end()) {
        auto begun = reduction(cmp_ge(row_numbers(input), offset),
                               Reduction_attributes().set_mode(ReductionMode_t::ADD).set_dims({0}));
        groups = binary_select(input, known->second, cmp_eq(begun, add(gen_index(offset, 0), 1)));
    } else {
        groups = group_sums(input, mode, offset);
    }
    Tensor made = reduce(groups);
    made->set_dim({of[0], 1, dims[2]});
    return made;
}

/** Blocks along the last dimension do not cross rows, so groups of rows do not affect them. */
inline std::array<Tensor, 2> Graph::block_scale_quantize(const Operand &input,
                                                         Block_scale_quantize_attributes attributes) {
    const Tensor &x = input.tensor();
    if (attributes.group_offset_ && x) {
        infer({x});
        const auto rank = static_cast<std::int64_t>(x->get_dim().size());
        const std::int64_t axis = attributes.get_axis().value_or(rank - 1);
        if (axis != -1 && axis != rank - 1)
            attributes.refuse("set_group_offset() was called, and blocks along dimension " + std::to_string(axis) +
                              " would cross groups of rows. Quantize along the last dimension, or each group by "
                              "itself.");
    }
    auto made = record("block_scale_quantize", WEFT_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR, attributes,
                       WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC,
                       {{WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_XDESC, "input", input, true}},
                       {{WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_YDESC, "Y", false, true, true},
                        {WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC, "SCALE", false, true, true}});
    return {made[0], made[1]};
}

} // namespace weft::frontend::graph

#endif
