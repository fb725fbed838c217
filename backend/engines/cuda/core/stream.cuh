/* stream: accesses to memory that is used only once, bypassing L1, 16 bytes at a time; barriers of parts of a block and
   of several blocks; and synchronization with the preceding and following launch. Pointers must be to global memory,
   except those to peers. */

#include "core/ptx_sm90.cuh"

namespace weft {

struct alignas(16) words4 {
    u32 at[4];
};

DEVICE words4 load_words(const void *p) {
    words4 w;
    ptx::ld_global_no_allocate_v4(w.at, p);
    return w;
}
DEVICE void store_words(void *p, const words4 &w) { ptx::st_global_no_allocate_v4(p, w.at); }

/* A run of elements in registers in its stored form, in whole words. Converting elements when they are loaded would
   make a thread wait there; this waits where at() is called. */
template <class T, int N> struct raw {
    static constexpr int BYTES = sizeof(T) * N, WORDS = (BYTES + 3) / 4, BITS = 8 * sizeof(T);
    u32 words[WORDS];

    DEVICE T at(int e) const {
        union {
            u32 words[(sizeof(T) + 3) / 4];
            T number;
        } one;
        if constexpr (BITS < 32)
            one.words[0] = words[e * BITS / 32] >> e * BITS % 32;
        else
            for (int w = 0; w < BITS / 32; w++)
                one.words[w] = words[e * BITS / 32 + w];
        return one.number;
    }

    /* Must be called once per element, the first of a word first. */
    DEVICE void put(int e, T x) {
        union {
            u32 words[(sizeof(T) + 3) / 4];
            T number;
        } one;
        one.words[0] = 0;
        one.number = x;
        if constexpr (BITS < 32)
            words[e * BITS / 32] = (e * BITS % 32 ? words[e * BITS / 32] : 0) | one.words[0] << e * BITS % 32;
        else
            for (int w = 0; w < BITS / 32; w++)
                words[e * BITS / 32 + w] = one.words[w];
    }

    /* ONCE: the data is not read again soon. COUNT: number of elements. */
    template <bool ONCE, int COUNT = N> static DEVICE raw load(const T *p) {
        raw r;
        if constexpr (COUNT < N) {
            r = load_each<COUNT>(p);
        } else if constexpr (BYTES % 16 == 0) {
#pragma unroll
            for (int i = 0; i < BYTES / 16; i++) {
                const words4 w = ONCE ? load_words((const words4 *)p + i) : ((const words4 *)p)[i];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    r.words[4 * i + k] = w.at[k];
            }
        } else if constexpr (BYTES % 4 == 0 && BYTES != 8) {
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                r.words[i] = ((const u32 *)p)[i];
        } else if constexpr (BYTES == 8) {
            const run<u32, 2> w = *(const run<u32, 2> *)p;
            r.words[0] = w.at[0];
            r.words[1] = w.at[1];
        } else if constexpr (BYTES == 2) {
            r.words[0] = *(const u16 *)p;
        } else {
            r.words[0] = *(const u8 *)p;
        }
        return r;
    }

    /* Loads the elements separately, at any alignment. */
    template <int COUNT> static DEVICE raw load_each(const T *p) {
        raw r;
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            r.put(e, p[e]);
        return r;
    }

    /* Loads elements that begin `head` elements (plus a multiple of 16 bytes) after an aligned address, from the
       aligned 16-byte words that contain them. */
    template <int COUNT = N, bool EACH = false> static DEVICE raw load_across(const T *p, int head) {
        if constexpr (COUNT < N || EACH)
            return load_each<COUNT>(p);
        constexpr int PIECES = (BYTES + 15) / 16 + 1;
        const u32 phase = head * sizeof(T) % 16;
        u32 w[4 * PIECES];
        raw r;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const u32 further = 16 * i < BYTES ? 16 * i : (phase + BYTES - 1) / 16 * 16;
            const words4 piece = *(const words4 *)((const char *)p - phase + further);
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[4 * i + k] = piece.at[k];
        }
#pragma unroll
        for (int i = 0; i < WORDS + 2; i++)
            w[i] = phase & 8 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < WORDS + 1 && BITS <= 32; i++)
            w[i] = phase & 4 ? w[i + 1] : w[i];
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            r.words[i] = BITS < 32 ? __funnelshift_r(w[i], w[i + 1], phase % 4 * 8) : w[i];
        return r;
    }

    /* Makes the compiler treat it as new data, so that it converts again instead of holding converted values. */
    DEVICE void forget() {
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            ptx::forget(words[w]);
    }
};

/* Stores 16-byte words if the run's size allows. IS_LAST: the cache may evict it first. */
template <bool IS_LAST, class T, int N> DEVICE void store_by_words(T *p, const run<T, N> &r) {
    if constexpr (sizeof(run<T, N>) % 16 == 0) {
        union {
            words4 words[sizeof(run<T, N>) / 16];
            run<T, N> elements;
        } both;
        both.elements = r;
#pragma unroll
        for (int i = 0; i < (int)(sizeof(run<T, N>) / 16); i++)
            if constexpr (IS_LAST)
                ptx::st_global_cs_v4((words4 *)p + i, both.words[i].at);
            else
                store_words((words4 *)p + i, both.words[i]);
    } else {
        store_run<T, N>(p, r);
    }
}
template <class T, int N> DEVICE void stream_out(T *p, const run<T, N> &r) { store_by_words<false>(p, r); }
template <class T, int N> DEVICE void put_away(T *p, const run<T, N> &r) { store_by_words<true>(p, r); }

/* ---- Barriers ---- */

/* Waits for `threads` threads, in whole warps, that name the same barrier, 1 .. 15. */
DEVICE void team_barrier(int barrier, int threads) { ptx::bar_sync(barrier, threads); }

/* Copies to shared memory without registers, 16 bytes at a time if possible. */
template <int BYTES> DEVICE void copy_pieces(char *shared, const void *p) {
    constexpr int PIECE = BYTES < 16 ? BYTES : 16;
#pragma unroll
    for (int i = 0; i < BYTES; i += PIECE)
        copy_async<PIECE>(shared + i, (const char *)p + i, true);
}

/* L2 policies of copies (sm_80 and newer): evict data first that is not read again, or retain it. */
DEVICE u64 policy_to_leave() { return ptx::createpolicy_evict_first(); }
DEVICE u64 policy_to_stay() { return ptx::createpolicy_evict_last(); }

/* True for the last of `count` threads to arrive, after which the count in shared memory is 0 again; that thread sees
   what the others did before. */
DEVICE bool is_last(u32 *arrived, u32 count) {
    return ptx::atom_inc_shared(ptx::shared_address(arrived), count - 1) == count - 1;
}

/* ---- TMA copies (sm_90 and newer) ---- */

/* One thread initializes a barrier of `count` arrivals; all threads may use it after the next __syncthreads(). */
DEVICE void make_arrival(u64 *arrival, int count = 1) {
    barrier_init(shared_address(arrival), count);
    barrier_init_fence();
}

/* Waiting threads see what the thread stored before. */
DEVICE void count_arrival(u64 *arrival) { arrive(shared_address(arrival)); }

/* One thread announces how many bytes will arrive, and then copies them; both sides are multiples of 16 bytes. */
DEVICE void expect_bytes(u64 *arrival, u32 bytes) { arrive_expecting(shared_address(arrival), bytes); }
DEVICE void copy_bulk(void *shared, const void *p, u32 bytes, u64 *arrival) {
    if (bytes > 0)
        load_bytes(shared_address(shared), p, bytes, shared_address(arrival));
}

/* Completes this thread's loads from shared memory before the async proxy may overwrite the same addresses: neither
   __syncwarp nor an arrival waits for loads in flight. */
DEVICE void loads_before_copies() { publish_to_async_proxy(); }

/* Every thread waits until the bytes of this phase (0, 1, 0, ...) have arrived, and sees them. */
DEVICE void await_arrival(u64 *arrival, u32 turn) { wait_in_place(shared_address(arrival), turn); }

/* ---- Cooperating blocks ---- */

/* Adds to a counter that other blocks wait for; they see what was written before. */
DEVICE void add_released(u32 *counter, u32 number) { ptx::red_release_add(counter, number); }
DEVICE u32 load_acquired(const u32 *counter) { return ptx::ld_acquire(counter); }
DEVICE u32 fetch_and_add(u32 *counter, u32 number) { return ptx::atom_add(counter, number); }

/* ---- Clusters of blocks (sm_90 and newer) ---- */

/* Writes whole words to the same location in the shared memory of block `peer`. */
template <class T> DEVICE void store_to_peer(T *shared, int peer, const T &number) {
    union {
        u32 words[sizeof(T) / 4];
        T number;
    } both;
    both.number = number;
    const u32 at = peer_address(shared_address(shared), peer);
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        store_at_peer(at + 4 * i, both.words[i]);
}

/* The same without a barrier afterwards: the peer's mbarrier counts the bytes for the threads that wait on it. */
template <class T> DEVICE void send_to_peer(T *shared, u64 *arrival, int peer, const T &number) {
    union {
        u32 words[sizeof(T) / 4];
        T number;
    } both;
    both.number = number;
    const u32 at = peer_address(shared_address(shared), peer), counts = peer_address(shared_address(arrival), peer);
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        send_word_to_peer(at + 4 * i, counts, both.words[i]);
}

/* All threads of all blocks arrive, wait for the others, and then see what these had written before they arrived. The
   threads of a warp do both together. */
DEVICE void arrive_at_cluster() {
    __syncwarp();
    cluster_arrive();
}
DEVICE void await_cluster() {
    __syncwarp();
    cluster_wait();
}

/* ---- Overlapping launches (sm_90 and newer) ---- */

/* The first waits until the preceding launch has ended and its writes are visible; the second lets the next launch
   start, which waits in turn. */
DEVICE void await_launch_before() { ptx::griddepcontrol_wait(); }
DEVICE void allow_launch_after() { ptx::griddepcontrol_launch_dependents(); }

/* The same at the start of a kernel. The next launch may start at once, when this one begins to work, or when this one
   allows it. */
enum { AT_ONCE, WHEN_BEGUN, WHEN_DONE };
template <int LETS_NEXT> DEVICE void begin_launch() {
    if constexpr (CHIP >= 900) {
        if constexpr (LETS_NEXT == AT_ONCE)
            allow_launch_after();
        await_launch_before();
        if constexpr (LETS_NEXT == WHEN_BEGUN)
            allow_launch_after();
    }
}

} // namespace weft
