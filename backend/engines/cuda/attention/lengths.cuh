/* lengths: queries, or keys, in use of a batch entry: a list of them, or of their running sums. */

template <bool ARE_SUMS, class T> DEVICE i64 length_of(const T &list, i64 batch, i64 step) {
    const i64 length = to_integer(list[(batch + ARE_SUMS) * step]);
    return ARE_SUMS ? length - to_integer(list[batch * step]) : length;
}
