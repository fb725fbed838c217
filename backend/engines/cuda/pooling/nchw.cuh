/* nchw: parts of NCHW images in shared memory, surrounded by padding. Rows of shared memory begin at chunks of 16
   bytes. */

/* Fills a tile: FILL elements at once or, if rows are unaligned (SHIFTS), extracted from two aligned chunks of memory.
   A thread stays in its column, and advances by as many rows as the threads cover. */
template <class T, int FILL, bool SHIFTS> struct plane_reader {
    using filling = chunk<FILL *(int)sizeof(T)>;
    static constexpr int AT_ONCE = 4;
    static constexpr bool PASSES_REGISTERS = SHIFTS || CHIP < 800;

    const T *memory;
    i64 elements, plane; /* number of elements in all planes, and in one */
    length_t width, height, left, top;
    divisor fills, rows; /* per row of shared memory, and per plane there */

    /* Reads within a row; elements after its end are padding. */
    DEVICE filling read(const T *from, length_t count, const filling &padding) const {
        if constexpr (!SHIFTS)
            return *(const filling *)from;
        const u64 start = (u64)from / 16 * 16;
        const bool is_between = start >= (u64)memory && start + 32 <= (u64)(memory + elements);
        filling r = padding, all = {};
        if (is_between)
            all = load_shifted<(int)sizeof(filling)>((u64)from);
#pragma unroll
        for (int e = 0; e < FILL; e++)
            if (e < count)
                ((T *)&r)[e] = is_between ? ((const T *)&all)[e] : from[e];
        return r;
    }
    /* Fills one column of chunks, which is `column` elements from the first element of the memory's row. */
    DEVICE void fill_column(filling *to, const T *from, length_t column, u32 first, u32 step, u32 count,
                            const filling &padding) const {
        const bool has_column = column >= 0 && column < width;
        for (u32 n = first; n < count; n += AT_ONCE * step) {
            filling in[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                u32 image = n + i * step;
                if (image >= count)
                    continue;
                filling *const at = to + image * fills.value;
                const length_t row = top + (length_t)split(image, rows);
                const T *const source = from + ((length_t)image * (length_t)plane + row * width + column);
                const bool is_inside = has_column && row >= 0 && row < height;
                in[i] = padding;
                if constexpr (PASSES_REGISTERS) {
                    if (is_inside)
                        in[i] = read(source, width - column, padding);
                } else {
                    if (is_inside)
                        copy_async<(int)sizeof(filling)>(at, source, true);
                    else
                        *at = padding;
                }
            }
#pragma unroll
            for (int i = 0; PASSES_REGISTERS && i < AT_ONCE; i++)
                if (n + i * step < count)
                    to[(n + i * step) * fills.value] = in[i];
        }
    }
    /* Fills `planes` planes, starting at plane `first`. */
    DEVICE void fill(void *tile, i64 first, u32 planes, u32 word) const {
        u32 row = threadIdx.x, step = THREADS;
        const u32 column = split(row, fills);
        split(step, fills);
        const bool is_wide = step == 0;
        filling padding;
#pragma unroll
        for (int w = 0; w < (int)sizeof padding / 4; w++)
            padding.words[w] = word;
        if (is_wide)
            step = 1;
        else if (row >= step)
            return;
        for (u32 at = is_wide ? threadIdx.x : column; at < fills.value; at += is_wide ? THREADS : fills.value)
            fill_column((filling *)tile + at, memory + first * plane, (length_t)at * FILL - left, row, step,
                        planes * rows.value, padding);
    }
};

/* Waits for the copies of fill(). */
DEVICE void await_planes() {
    if constexpr (CHIP >= 800) {
        commit_copies();
        await_copies<0>();
    }
    __syncthreads();
}

/* Loads words of shared memory at once: the compiler may split such loads, which causes bank conflicts. */
template <int COUNT> DEVICE chunk<COUNT * 4> load_words(const u32 *p) {
    const u32 at = ptx::shared_address(p);
    chunk<COUNT * 4> r;
    if constexpr (COUNT == 4)
        ptx::ld_shared_v4(r.words, at);
    else
        ptx::ld_shared_v2(r.words, at);
    return r;
}

template <int COUNT, int ALL> DEVICE void take_words(u32 (&in)[ALL], const u32 *words, int first) {
    const chunk<COUNT * 4> r = load_words<COUNT>(words + first);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (first + i < ALL)
            in[first + i] = r.words[i];
}

/* COUNT adjacent elements of a row of shared memory, starting PHASE elements after `row`, which is at a multiple of
   VECTOR elements. */
template <int VECTOR, int PHASE, int COUNT, class T> DEVICE void take_row(T (&out)[COUNT], const T *row) {
    constexpr int SIZE = (int)sizeof(T), FIRST = PHASE * SIZE / 4, ALL = ((PHASE + COUNT) * SIZE + 3) / 4,
                  WIDEST = VECTOR * SIZE / 4;
    const u32 *const words = (const u32 *)row;
    __align__(16) u32 in[ALL];
#pragma unroll
    for (int w = 0; w < ALL; w++) {
        const bool is_quad = WIDEST >= 4 && w / 4 * 4 >= FIRST && w / 4 * 4 + 4 <= ALL;
        const bool is_pair = WIDEST >= 2 && w / 2 * 2 >= FIRST && w / 2 * 2 + 2 <= ALL;
        if (w < FIRST || (is_quad ? w % 4 : is_pair ? w % 2 : 0))
            continue;
        if (is_quad)
            take_words<4>(in, words, w);
        else if (is_pair)
            take_words<2>(in, words, w);
        else
            in[w] = words[w];
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        out[i] = ((const T *)in)[PHASE + i];
}
