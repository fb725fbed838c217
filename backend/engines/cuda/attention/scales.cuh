/* scales: scales of low-precision operands. Q_SCALES, K_SCALES, V_SCALES: 0 none; 1 one per head, which multiplies
   scores or results; 2 one per row, which multiplies the row as it is loaded; 3 one per block, likewise
   (element_scales.cuh). Also the amax outputs, from which a caller derives the scales of the next iteration. */

#include "attention/amax.cuh"

/* ---- Operands ---- */

template <class P> DEVICE sum_t query_scale_of(const P &a, i64 batch, i64 head) {
    return as<sum_t>::of(a.descale_q[batch * a.descale_q_batch + head * a.descale_q_head]);
}

/* Returns the factor of the products of a head. */
template <class P> DEVICE sum_t score_scale_of(const P &a, i64 batch, i64 head) {
    sum_t scale = scale_of(a);
    if constexpr (Q_SCALES == 1)
        scale *= query_scale_of(a, batch, head);
    if constexpr (K_SCALES == 1)
        scale *= as<sum_t>::of(a.descale_k[batch * a.descale_k_batch + head / a.k_group_size * a.descale_k_head]);
    return scale;
}

/* The factor of a key, or a value, for query head `head`; scales are paged like their rows. */
template <class P, class T> DEVICE sum_t key_scale_of(const P &a, i64 batch, i64 head, const T &pages, int key) {
    const i64 page = K_PAGE ? pages.page_of(key) : batch, row = K_PAGE ? key % max(K_PAGE, 1) : key;
    return as<sum_t>::of(
        a.descale_k[page * a.descale_k_batch + head / a.k_group_size * a.descale_k_head + row * a.descale_k_row]);
}
template <class P, class T> DEVICE sum_t value_row_scale_of(const P &a, i64 batch, i64 head, const T &pages, int key) {
    const i64 page = V_PAGE ? pages.page_of(key) : batch, row = V_PAGE ? key % max(V_PAGE, 1) : key;
    return as<sum_t>::of(
        a.descale_v[page * a.descale_v_batch + head / a.v_group_size * a.descale_v_head + row * a.descale_v_row]);
}

/* ---- Results ---- */

/* The factor of O in addition to that of end_row: the scale of all values of a head, and scale and descale of P. */
template <class P> DEVICE sum_t value_scale_of(const P &a, i64 batch, i64 head) {
    sum_t scale = 1;
    if constexpr (V_SCALES == 1)
        scale *= as<sum_t>::of(a.descale_v[batch * a.descale_v_batch + head / a.v_group_size * a.descale_v_head]);
    if constexpr (HAS_SCALE_S)
        scale *= as<sum_t>::of(*a.scale_s);
    if constexpr (HAS_DESCALE_S)
        scale *= as<sum_t>::of(*a.descale_s);
    return scale;
}
/* Returns the scale of the stored O. */
template <class P> DEVICE sum_t result_scale_of(const P &a) {
    if constexpr (HAS_SCALE_O)
        return as<sum_t>::of(*a.scale_o);
    else
        return 1;
}

/* The largest P and |O| of this thread; not negative. */
struct largest {
    sum_t s, o;
    DEVICE void note_row(sum_t p) {
        if constexpr (HAS_AMAX_S)
            s = fmax(s, p);
    }
    DEVICE void note(sum_t x) {
        if constexpr (HAS_AMAX_O)
            o = fmax(o, fabs(x));
    }
    /* Called by a whole warp. */
    template <class P> DEVICE void store(const P &a) {
        if constexpr (HAS_AMAX_S)
            raise_amax(a.amax_s, (float)s);
        if constexpr (HAS_AMAX_O)
            raise_amax(a.amax_o, (float)o);
    }
};
