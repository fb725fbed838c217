/* staging: from memory through registers into an operand's tile in shared memory
   Pipeline  load   |regs 1   |regs 2   |...      step s + 1 is loaded from memory while
             math   |stage 0  |stage 1  |...      step s is multiplied; two stages, one barrier per step
   Offsets   parts of offsets and coordinates are tables in shared memory: those of i and j are computed once per tile,
             those of k two steps ahead
   Memory    tables + the larger of two stages and one epilogue tile of sums for epilogue(); below 48 KB
   Requires  READS_K_MAJOR of the kernel: true if products read 16 bytes along k of one row (or transpose blocks of
             8 x 8 halves), false if they read contiguous elements along the operand's other index */

/* MMA reads 16 bytes along k of one row, or transposes blocks of 8 x 8 halves; FMA reads along the other index. */
template <class operand, int BLOCK> struct stage_of {
    using T = typename operand::staged;
    static constexpr bool IS_K_MAJOR = READS_K_MAJOR && (operand::IS_K_MAJOR || sizeof(T) != 2);
    static constexpr int PITCH =
        (IS_K_MAJOR ? BLOCK_K : BLOCK) + 16 / sizeof(T); /* 16-byte pieces of consecutive rows are in different banks */
    alignas(16) T at[(IS_K_MAJOR ? BLOCK : BLOCK_K) * PITCH];
    DEVICE T *address(int outer, int k) { return at + (IS_K_MAJOR ? outer * PITCH + k : k * PITCH + outer); }
};

template <bool CONDITION, class A, class B> struct conditional {
    using type = A;
};
template <class A, class B> struct conditional<false, A, B> {
    using type = B;
};

/* The elements of one step that this thread moves: fetch() loads them, store() writes them in the layout of the
   products. */
template <class operand, int BLOCK> struct run_loader {
    using T = typename operand::stored;
    using S = typename operand::staged;
    using K = typename conditional<HAS_FILL, S, T>::type; /* the padding value may not be representable in the tensor's
                                                        type */
    using coordinates = typename operand::coordinates;
    static constexpr int LENGTH = operand::RUN;
    static constexpr int ACROSS = (operand::IS_K_MAJOR ? BLOCK_K : BLOCK) / LENGTH;
    static constexpr int RUNS = BLOCK * BLOCK_K / LENGTH;
    static constexpr int EACH = (RUNS + THREADS - 1) / THREADS;
    run<K, LENGTH> values[EACH];

    static_assert(THREADS % ACROSS == 0, "the runs of a thread differ in one of their coordinates only");
    static DEVICE bool has(int u) { return RUNS % THREADS == 0 || (int)threadIdx.x + u * THREADS < RUNS; }
    static DEVICE int across() { return (int)(threadIdx.x % ACROSS) * LENGTH; }
    static DEVICE int down(int u) { return (int)(threadIdx.x / ACROSS) + u * (THREADS / ACROSS); }
    static DEVICE int outer_of(int u) { return operand::IS_K_MAJOR ? down(u) : across(); }
    static DEVICE int k_of(int u) { return operand::IS_K_MAJOR ? across() : down(u); }

    DEVICE void fetch(const arguments &p, const T *base, const coordinates *outers, const coordinates *ks) {
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            if (!has(u))
                continue;
            const coordinates x = outers[outer_of(u)], y = ks[k_of(u)];
            const i64 at = x.offset + y.offset;
            const bool is_inside = at >= 0 && operand::is_inside(p, x, y);
            if constexpr (HAS_FILL) {
                values[u].at[0] = is_inside ? staged_as<S>::of(base[at])
                                  : at >= 0 ? (S)__longlong_as_double(p.fill)
                                            : (S)0;
            } else {
                values[u] = run<T, LENGTH>{};
                if (is_inside)
                    values[u] = load_run<T, LENGTH>(base + at);
            }
        }
    }
    DEVICE void store(stage_of<operand, BLOCK> &stage) {
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            if (!has(u))
                continue;
            const int outer = outer_of(u), k = k_of(u);
            run<S, LENGTH> elements;
#pragma unroll
            for (int e = 0; e < LENGTH; e++)
                elements.at[e] = staged_as<S>::of(values[u].at[e]);
            if constexpr (stage_of<operand, BLOCK>::IS_K_MAJOR == operand::IS_K_MAJOR) {
                store_run<S, LENGTH>(stage.address(outer, k), elements);
            } else {
#pragma unroll
                for (int e = 0; e < LENGTH; e++)
                    *stage.address(outer + (operand::IS_K_MAJOR ? 0 : e), k + (operand::IS_K_MAJOR ? e : 0)) =
                        elements.at[e];
            }
        }
    }
};

struct stage {
    stage_of<operand_a, BLOCK_M> a;
    stage_of<operand_b, BLOCK_N> b;
};
