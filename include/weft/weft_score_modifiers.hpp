/* SPDX-License-Identifier: Apache-2.0 */
/* The part of weft.hpp with predefined score modifiers of attention, for set_score_mod(), under the names of cuDNN's
   frontend. */
#ifndef WEFT_SCORE_MODIFIERS_HPP
#define WEFT_SCORE_MODIFIERS_HPP

#ifndef WEFT_HPP
#error "This is a part of weft.hpp. Include <weft/weft.hpp>."
#endif

namespace weft::frontend::graph::attn::score_modifiers {

/** The score of a hidden key. */
inline float get_negative_inf_value() { return -std::numeric_limits<float>::infinity(); }

/** Hides keys outside of a band along the diagonal: those with col > row + right_bound + shift, and those with col +
    left_bound - shift <= row. shift is 0 for TOP_LEFT; for BOTTOM_RIGHT it is the number of keys minus that of queries:
    of each batch if the tensors are given, otherwise s_kv - s_q. Cumulative lengths are not supported. */
inline Tensor sliding_window_mask(std::shared_ptr<Graph> graph, Tensor scores, DiagonalAlignment_t alignment,
                                  std::optional<std::int64_t> left_bound, std::optional<std::int64_t> right_bound,
                                  std::int64_t s_q, std::int64_t s_kv, Tensor seq_len_q, Tensor seq_len_kv,
                                  Tensor cu_seq_len_q = nullptr, Tensor cu_seq_len_kv = nullptr) {
    auto number = [](std::int64_t value) {
        return std::make_shared<Tensor_attributes>(static_cast<std::int32_t>(value));
    };
    const bool is_top_left = alignment != DiagonalAlignment_t::BOTTOM_RIGHT;
    if (is_top_left)
        seq_len_q = seq_len_kv = cu_seq_len_q = cu_seq_len_kv = nullptr;
    const bool has_lengths = seq_len_q || seq_len_kv || cu_seq_len_q || cu_seq_len_kv;
    const std::int64_t shift = is_top_left || has_lengths ? 0 : s_kv - s_q;
    if (has_lengths && !cu_seq_len_q && !cu_seq_len_kv) {
        seq_len_q = seq_len_q ? seq_len_q : number(s_q);
        seq_len_kv = seq_len_kv ? seq_len_kv : number(s_kv);
    }
    auto hide = [&](const Tensor &left, const Tensor &right, PointwiseMode_t mode, const char *name) {
        scores = graph->diagonal_band_mask(scores, get_negative_inf_value(), seq_len_q, seq_len_kv, cu_seq_len_q,
                                           cu_seq_len_kv, left, right,
                                           DiagonalBandMask_attributes().set_name(name).set_comparison_mode(mode));
    };
    if (right_bound)
        hide(nullptr, number(*right_bound + shift), PointwiseMode_t::CMP_GE, "right_bound_mask");
    if (left_bound)
        hide(number(*left_bound - shift), nullptr, PointwiseMode_t::CMP_GT, "left_bound_mask");
    return scores;
}

/** Hides later keys; queries and keys are aligned at the first one. */
inline Tensor causal_mask(std::shared_ptr<Graph> graph, Tensor scores) {
    return sliding_window_mask(std::move(graph), std::move(scores), DiagonalAlignment_t::TOP_LEFT, std::nullopt, 0, 0,
                               0, nullptr, nullptr);
}

/** Hides later keys; queries and keys are aligned at the last one. */
inline Tensor causal_mask_bottom_right(std::shared_ptr<Graph> graph, Tensor scores, std::int64_t s_q, std::int64_t s_kv,
                                       Tensor seq_len_q, Tensor seq_len_kv) {
    return sliding_window_mask(std::move(graph), std::move(scores), DiagonalAlignment_t::BOTTOM_RIGHT, std::nullopt, 0,
                               s_q, s_kv, std::move(seq_len_q), std::move(seq_len_kv));
}

/** Hides scores after the lengths of each batch, [B, 1, 1, 1]. */
inline Tensor padding_mask(std::shared_ptr<Graph> graph, Tensor scores, Tensor seq_len_kv, Tensor seq_len_q) {
    Tensor is_query = graph->cmp_lt(graph->gen_index(scores, 2), seq_len_q);
    Tensor is_key = graph->cmp_lt(graph->gen_index(scores, 3), seq_len_kv);
    return graph->binary_select(scores, get_negative_inf_value(), graph->logical_and(is_query, is_key));
}

/** Adds slope (col - row). slopes: receives a new input, [1, H, 1, 1] of FLOAT, whose memory the caller provides. size:
    receives its size in bytes. */
inline Tensor alibi_mask(std::shared_ptr<Graph> graph, Tensor scores, Tensor &slopes, std::int64_t heads,
                         std::int64_t &size) {
    slopes = std::make_shared<Tensor_attributes>();
    slopes->set_dim({1, heads, 1, 1}).set_stride({heads, 1, 1, 1}).set_data_type(DataType_t::FLOAT);
    size = heads * static_cast<std::int64_t>(sizeof(float));
    Tensor row = graph->gen_index(scores, 2), column = graph->gen_index(scores, 3);
    return graph->add(scores, graph->mul(graph->sub(column, row), slopes));
}

inline Tensor bias(std::shared_ptr<Graph> graph, Tensor scores, Tensor bias) { return graph->add(scores, bias); }

/** Does nothing: a modifier becomes a part of the attention. */
inline error_t build_operation_subgraph(std::shared_ptr<Graph>) { return {}; }

/** cap tanh(scores / cap), and its gradient. */
class Softcap {
  public:
    Tensor forward(std::shared_ptr<Graph> graph, Tensor scores, Tensor cap) {
        before_tanh_ = graph->div(scores, cap);
        return graph->mul(graph->tanh(before_tanh_), cap);
    }
    Tensor backward(std::shared_ptr<Graph> graph, Tensor slope, Tensor cap) {
        return graph->div(graph->tanh_backward(graph->mul(slope, cap), before_tanh_), cap);
    }

  private:
    Tensor before_tanh_;
};

} // namespace weft::frontend::graph::attn::score_modifiers

#endif
