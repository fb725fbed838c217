/* stream: memory that is touched once passes by the first cache, 16 bytes at a time; what
   is copied ahead to shared memory; and barriers of a part of a block. Pointers must be to global memory. */

namespace weft {

struct alignas(16) words4 { u32 at[4]; };

DEVICE words4 load_words(const void* p) {
    words4 w;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.at[0]), "=r"(w.at[1]), "=r"(w.at[2]), "=r"(w.at[3]) : "l"(p));
    return w;
}
DEVICE void store_words(void* p, const words4& w) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "r"(w.at[0]), "r"(w.at[1]), "r"(w.at[2]), "r"(w.at[3]) : "memory");
}

template <class T, int N> DEVICE run<T, N> stream_run(const T* p) {
    if constexpr (sizeof(run<T, N>) % 16 == 0) {
        union { words4 words[sizeof(run<T, N>) / 16]; run<T, N> elements; } both;
        #pragma unroll
        for (int i = 0; i < (int)(sizeof(run<T, N>) / 16); i++) both.words[i] = load_words((const words4*)p + i);
        return both.elements;
    } else {
        return load_run<T, N>(p);
    }
}

template <class T, int N> DEVICE void stream_out(T* p, const run<T, N>& r) {
    if constexpr (sizeof(run<T, N>) % 16 == 0) {
        union { words4 words[sizeof(run<T, N>) / 16]; run<T, N> elements; } both;
        both.elements = r;
        #pragma unroll
        for (int i = 0; i < (int)(sizeof(run<T, N>) / 16); i++) store_words((words4*)p + i, both.words[i]);
    } else {
        store_run<T, N>(p, r);
    }
}

/* ---- Copies to shared memory that go on while the thread works, 4, 8 or 16 bytes at a time (sm_80 on) ---- */

template <int BYTES> DEVICE void copy_bytes(void* shared, const void* p) {
    const u32 to = (u32)__cvta_generic_to_shared(shared);
    if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(p) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(p), "n"(BYTES) : "memory");
}

template <class T, int N> DEVICE void copy_run(run<T, N>* shared, const T* p) {
    constexpr int BYTES = sizeof(run<T, N>), UNIT = BYTES < 16 ? BYTES : 16;
    #pragma unroll
    for (int i = 0; i < BYTES / UNIT; i++) copy_bytes<UNIT>((char*)shared + i * UNIT, (const char*)p + i * UNIT);
}

/* Closes a group of copies; waits until at most PENDING of the groups closed last are under way. */
DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void await_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

/* ---- Registers and barriers ---- */

/* Makes the compiler take a run for new, so that it converts it again rather than keep what it made of it. */
template <class T, int N> DEVICE void forget(run<T, N>& r) {
    if constexpr (sizeof(run<T, N>) % 4 == 0) {
        union { u32 words[sizeof(run<T, N>) / 4]; run<T, N> elements; } both;
        both.elements = r;
        #pragma unroll
        for (int i = 0; i < (int)(sizeof(run<T, N>) / 4); i++) asm volatile("" : "+r"(both.words[i]));
        r = both.elements;
    }
}

/* Waits for `threads` threads, whole warps, that name the same barrier, 1 .. 15. */
DEVICE void team_barrier(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

} // namespace weft
