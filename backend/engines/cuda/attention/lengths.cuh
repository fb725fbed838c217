/* lengths: queries and keys in use of a batch entry, from lengths or cumulative sums. They are clamped to 0 .. all,
   even if the lists are invalid. An entry whose ragged offsets are outside of a tensor has length 0. Requires
   HAS_SEQ_LEN_Q HAS_SEQ_LEN_KV and the emitted functions queries_fit and keys_fit */

template <bool ARE_SUMS, class T> DEVICE i64 length_of(const T &list, i64 batch, i64 step, i64 all) {
    i64 length = to_integer(list[(batch + ARE_SUMS) * step]);
    if constexpr (ARE_SUMS)
        length -= to_integer(list[batch * step]);
    return min(max(length, 0ll), all);
}

/* Templates on the arguments, so that fields that were not emitted are not looked up. */
template <class P> DEVICE i32 queries_in_use(const P &a, i64 batch) {
    i64 queries = a.queries;
    if constexpr (HAS_SEQ_LEN_Q)
        queries = length_of<SEQ_LEN_Q_ARE_SUMS>(a.seq_len_q, batch, a.seq_len_q_step, queries);
    return queries_fit(a, batch, queries) ? (i32)queries : 0;
}
template <class P> DEVICE i32 keys_in_use(const P &a, i64 batch) {
    i64 keys = a.keys;
    if constexpr (HAS_SEQ_LEN_KV)
        keys = length_of<SEQ_LEN_KV_ARE_SUMS>(a.seq_len_kv, batch, a.seq_len_kv_step, keys);
    return keys_fit(a, batch, keys) ? (i32)keys : 0;
}
