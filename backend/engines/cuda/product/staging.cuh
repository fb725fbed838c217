/* staging: from memory through registers into a factor's tile in shared memory. READS_ALONG_DEPTH, of the kernel, says whether products
   read 16 bytes along k of one row (or transpose blocks of 8 x 8 halves), or neighbours along the factor's other index. */

/* MMA reads 16 bytes along k of one row, or transposes blocks of 8 x 8 halves; FMA reads along the other index. */
template <class factor, int BLOCK> struct stage_of {
    using T = typename factor::staged;
    static constexpr bool ALONG_DEPTH = READS_ALONG_DEPTH && (factor::ALONG_DEPTH || sizeof(T) != 2);
    static constexpr int PITCH =
        (ALONG_DEPTH ? BLOCK_K : BLOCK) + 16 / sizeof(T); /* rows of 16 bytes in different banks */
    alignas(16) T at[(ALONG_DEPTH ? BLOCK : BLOCK_K) * PITCH];
    DEVICE T *place(int outer, int k) { return at + (ALONG_DEPTH ? outer * PITCH + k : k * PITCH + outer); }
};

template <bool CONDITION, class A, class B> struct choose {
    using type = A;
};
template <class A, class B> struct choose<false, A, B> {
    using type = B;
};

/* The elements of one step that this thread brings: fetch() reads them, put() stores them as the product wants them. */
template <class factor, int BLOCK> struct carrier {
    using T = typename factor::stored;
    using S = typename factor::staged;
    using K = typename choose<HAS_FILL, S, T>::type; /* the padding value is no element of the tensor's type */
    using place = typename factor::place;
    static constexpr int LENGTH = factor::RUN;
    static constexpr int ACROSS = (factor::ALONG_DEPTH ? BLOCK_K : BLOCK) / LENGTH;
    static constexpr int RUNS = BLOCK * BLOCK_K / LENGTH;
    static constexpr int EACH = (RUNS + THREADS - 1) / THREADS;
    run<K, LENGTH> kept[EACH];

    static_assert(THREADS % ACROSS == 0, "the runs of a thread differ in one of their places only");
    static DEVICE bool has(int u) { return RUNS % THREADS == 0 || (int)threadIdx.x + u * THREADS < RUNS; }
    static DEVICE int across() { return (int)(threadIdx.x % ACROSS) * LENGTH; }
    static DEVICE int down(int u) { return (int)(threadIdx.x / ACROSS) + u * (THREADS / ACROSS); }
    static DEVICE int outer_of(int u) { return factor::ALONG_DEPTH ? down(u) : across(); }
    static DEVICE int depth_of(int u) { return factor::ALONG_DEPTH ? across() : down(u); }

    DEVICE void fetch(const arguments &p, const T *base, const place *outers, const place *depths) {
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            if (!has(u))
                continue;
            const place x = outers[outer_of(u)], y = depths[depth_of(u)];
            const i64 at = x.offset + y.offset;
            const bool is_inside = at >= 0 && factor::is_inside(p, x, y);
            if constexpr (HAS_FILL) {
                kept[u].at[0] = is_inside ? staged_as<S>::of(base[at])
                                : at >= 0 ? (S)__longlong_as_double(p.fill)
                                          : (S)0;
            } else {
                kept[u] = run<T, LENGTH>{};
                if (is_inside)
                    kept[u] = load_run<T, LENGTH>(base + at);
            }
        }
    }
    DEVICE void put(stage_of<factor, BLOCK> &stage) {
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            if (!has(u))
                continue;
            const int outer = outer_of(u), k = depth_of(u);
            run<S, LENGTH> elements;
#pragma unroll
            for (int e = 0; e < LENGTH; e++)
                elements.at[e] = staged_as<S>::of(kept[u].at[e]);
            if constexpr (stage_of<factor, BLOCK>::ALONG_DEPTH == factor::ALONG_DEPTH) {
                store_run<S, LENGTH>(stage.place(outer, k), elements);
            } else {
#pragma unroll
                for (int e = 0; e < LENGTH; e++)
                    *stage.place(outer + (factor::ALONG_DEPTH ? 0 : e), k + (factor::ALONG_DEPTH ? e : 0)) =
                        elements.at[e];
            }
        }
    }
};

struct stage {
    stage_of<factor_a, BLOCK_M> a;
    stage_of<factor_b, BLOCK_N> b;
};
