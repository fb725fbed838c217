/* attention_pages: paged keys and values: row i of a sequence is row i % SIZE of the page in entry i / SIZE of the
   table. Page indices are clamped to the container. */

/* The page table of a batch entry. SIZE: rows per page; 0: not paged. */
template <int SIZE, class T> struct page_table {
    const T *at;
    i64 step, pages;
    DEVICE i64 page_of(int row) const { return min(max(to_integer(at[row / SIZE * step]), 0ll), pages - 1); }
};
template <class T> struct page_table<0, T> {
    DEVICE i64 page_of(int) const { return 0; }
};

template <class P> DEVICE auto k_pages_of(const P &a, i64 batch) {
    if constexpr (K_PAGE > 0)
        return page_table<K_PAGE, k_table_t>{a.k_table + batch * a.k_table_batch, a.k_table_step, a.k_pages};
    else
        return page_table<0, void>{};
}
template <class P> DEVICE auto v_pages_of(const P &a, i64 batch) {
    if constexpr (V_PAGE > 0)
        return page_table<V_PAGE, v_table_t>{a.v_table + batch * a.v_table_batch, a.v_table_step, a.v_pages};
    else
        return page_table<0, void>{};
}
