/* ptx_sm90: instructions of Hopper only, one per function, named after what it does: barriers in shared memory, bulk
   tensor copies (TMA), clusters, and the asynchronous tensor core product (wgmma), whose text is generated for the
   tile's width. Shared memory addresses have 32 bits. */

#pragma once

#include "core/ptx_mma.cuh"

struct alignas(64) tensor_map {
    u64 words[16];
}; /* encoded on the host */

/* ---- Thread and block indices ---- */

DEVICE u32 warp_index() {
    return __shfl_sync(~0u, threadIdx.x >> 5, 0);
} /* the shuffle marks the index as uniform within the warp for the compiler */
DEVICE u32 lane_index() { return threadIdx.x & 31; }
DEVICE u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
using ptx::shared_address;
DEVICE bool elect_one() {
    u32 chosen;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
    return chosen;
}

/* ---- Barriers in shared memory: a phase ends when all arrivals and all announced bytes are in ---- */

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
DEVICE void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
} /* before peers or TMA see them */
DEVICE void arrive_expecting(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void arrive(u32 barrier, u32 count = 1) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/* The same with a predicate instead of a branch, after which ptxas may no longer know that the warp is converged. */
DEVICE void arrive_where(u32 barrier, bool arrives) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(barrier),
                 "r"((u32)arrives)
                 : "memory");
}
/* The address in block `rank` of the cluster that corresponds to `address` in this block. */
DEVICE u32 peer_address(u32 address, u32 rank) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}
/* Without .release.cluster, which would put a fence before every arrival and halve the speed of a product; mma_wait
   already completes what wgmma read. The address is computed here, so that it occupies a register only briefly. */
DEVICE void arrive_at_peer(u32 barrier, u32 rank) {
    asm volatile("{ .reg .b32 peer; mapa.shared::cluster.u32 peer, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [peer]; }" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}
DEVICE bool try_wait(u32 barrier, u32 phase) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return done;
}
DEVICE void wait(u32 barrier, u32 phase) {
    while (!try_wait(barrier, phase)) {
    }
} /* try_wait sleeps in hardware */

/* The same as one loop of two instructions, which the compiler does not transform. */
DEVICE void wait_in_place(u32 barrier, u32 phase) {
    asm volatile("{\n.reg .pred there;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
                 "@!there bra AGAIN;\n}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
}

/* ---- Clusters, named barriers, registers, overlapping launches ---- */

/* Relaxed is enough to publish barriers after barrier_init_fence; a release would cost a fence of the whole device. */
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}
DEVICE void arrive_threads(u32 id, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void sync_threads(u32 id, u32 threads) { ptx::bar_sync(id, threads); }
template <u32 COUNT> DEVICE void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <u32 COUNT> DEVICE void grow_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
DEVICE void wait_for_previous_kernel() { ptx::griddepcontrol_wait(); }
DEVICE void let_next_kernel_start() { ptx::griddepcontrol_launch_dependents(); }

/* ---- TMA: box copies; coordinates are element indices, innermost first; out-of-bounds elements read as zero ---- */

DEVICE void prefetch_map(const tensor_map &map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

DEVICE void load_box(u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4}], [%2];" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
DEVICE void load_box(u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y, u64 policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}
DEVICE void load_box(u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y, i32 z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
DEVICE void load_box(u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y, i32 z, i32 u) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5, %6}], [%2];" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(u)
                 : "memory");
}
DEVICE void load_box(u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y, i32 z, i32 u, i32 v) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5, %6, %7}], [%2];" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
                 : "memory");
}
/* Multicast: the same offsets in every block of `peers` receive the box, and the barrier at the same offset counts its
   bytes. */
DEVICE void share_box(u16 peers, u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(peers)
                 : "memory");
}
DEVICE void share_box(u16 peers, u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y, i32 z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(peers)
                 : "memory");
}
DEVICE void share_box(u16 peers, u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y, i32 z, i32 u) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(u), "h"(peers)
                 : "memory");
}
DEVICE void share_box(u16 peers, u32 dst, const tensor_map &map, u32 barrier, i32 x, i32 y, i32 z, i32 u, i32 v) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "h"(peers)
                 : "memory");
}
/* Rows of a convolution (im2col): pixels in the order of the map's positions, starting at (w, h, n), each read at
   (+tap_w, +tap_h). */
DEVICE void load_pixels(u32 dst, const tensor_map &map, u32 barrier, i32 c, i32 w, i32 h, i32 n, i32 tap_w, i32 tap_h) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4, %5, %6}], [%2], {%7, %8};" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"((u16)tap_w), "h"((u16)tap_h)
                 : "memory");
}
DEVICE void load_pixels(u32 dst, const tensor_map &map, u32 barrier, i32 c, i32 w, i32 h, i32 d, i32 n, i32 tap_w,
                        i32 tap_h, i32 tap_d) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(dst),
                 "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "h"((u16)tap_w), "h"((u16)tap_h),
                 "h"((u16)tap_d)
                 : "memory");
}

DEVICE void store_box(const tensor_map &map, u32 src, i32 x, i32 y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
                 "r"(src), "r"(x), "r"(y)
                 : "memory");
}
DEVICE void store_box(const tensor_map &map, u32 src, i32 x, i32 y, i32 z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
                 "r"(src), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
DEVICE void store_box(const tensor_map &map, u32 src, i32 x, i32 y, i32 z, i32 u) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(src), "r"(x), "r"(y), "r"(z), "r"(u)
                 : "memory");
}
DEVICE void store_box(const tensor_map &map, u32 src, i32 x, i32 y, i32 z, i32 u, i32 v) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
        "r"(src), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
        : "memory");
}
/* Bytes without a map: addresses and sizes are multiples of 16. */
DEVICE void load_bytes(u32 dst, const void *src, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* Adds floats to global memory, each atomically, in any order relative to other blocks; completion is awaited as for
   stores. */
DEVICE void add_bytes(float *dst, u32 src, u32 bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst), "r"(src),
                 "r"(bytes)
                 : "memory");
}
DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
DEVICE void publish_to_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
} /* makes the threads' stores visible to TMA */

/* Four blocks of 8 x 8 halves, of which each lane holds two of a row; lane l passes the address of row l % 8 of block l
   / 8. */
DEVICE void store_matrices(u32 address, const u32 (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* Reads the same blocks. */
DEVICE void load_matrices(u32 (&r)[4], u32 address) { ldmatrix_x4(r, address); }
DEVICE void load_matrices_transposed(u32 (&r)[4], u32 address) { ldmatrix_x4_trans(r, address); }

/* The same blocks, transposed: each lane holds two of a column. */
DEVICE void store_matrices_transposed(u32 address, const u32 (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

DEVICE void store_pair(u32 address, u16 pair) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(pair) : "memory");
}
DEVICE void store_pair(u32 address, u32 pair) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
}
DEVICE void store_pair(u32 address, u64 pair) {
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(address), "l"(pair) : "memory");
}

struct alignas(16) words {
    u32 at[4];
};
DEVICE words load_words(u32 address) {
    words r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.at[0]), "=r"(r.at[1]), "=r"(r.at[2]), "=r"(r.at[3])
                 : "r"(address)
                 : "memory");
    return r;
}
DEVICE void store_words(u32 address, const words &r) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r.at[0]), "r"(r.at[1]), "r"(r.at[2]),
                 "r"(r.at[3])
                 : "memory");
}
DEVICE void store_quad(u32 address, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
/* Not ordered with other accesses; only valid between barriers that order it, while the memory does not change. */
DEVICE void load_pair(float (&r)[2], u32 address) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(r[0]), "=f"(r[1]) : "r"(address));
}
/* As store_words, but other warps may write the same values to the same words concurrently. */
DEVICE void store_words_of_many(u32 address, const words &r) {
    asm volatile("st.relaxed.cta.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r.at[0]), "r"(r.at[1]),
                 "r"(r.at[2]), "r"(r.at[3])
                 : "memory");
}

/* Writes to shared memory of another block of the cluster, at its peer_address; a barrier there counts the bytes. */
DEVICE void send_to_peer(u32 address, u32 barrier, const words &r) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(
            address),
        "r"(barrier), "r"(r.at[0]), "r"(r.at[1]), "r"(r.at[2]), "r"(r.at[3])
        : "memory");
}
DEVICE void send_word_to_peer(u32 address, u32 barrier, u32 word) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address), "r"(word),
                 "r"(barrier)
                 : "memory");
}
DEVICE void store_at_peer(u32 address, u32 word) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
DEVICE words load_words_of_peer(u32 address) {
    words r;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.at[0]), "=r"(r.at[1]), "=r"(r.at[2]), "=r"(r.at[3])
                 : "r"(address)
                 : "memory");
    return r;
}
DEVICE float load_of_peer(u32 address) {
    float r;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(r) : "r"(address) : "memory");
    return r;
}
DEVICE float load_shared(u32 address) {
    float r;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r) : "r"(address) : "memory");
    return r;
}
DEVICE void store_shared(u32 address, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

/* ---- wgmma: use in the order fence, products, commit, wait ---- */

DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void mma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* For the compiler, which may not see that a wait makes registers valid: reads of them do not move above this line, and
   previous knowledge of the value is discarded. */
DEVICE void fence_register(float &r) { asm volatile("" : "+f"(r)::"memory"); }
DEVICE void fence_register(i32 &r) { asm volatile("" : "+r"(r)::"memory"); }
DEVICE void fence_register(u32 &r) { asm volatile("" : "+r"(r)::"memory"); }
/* Reads both operands here, even if the compiler knows that the result is unused. */
DEVICE u32 select(bool is_first, u32 x, u32 y) {
    u32 r;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; selp.b32 %0, %1, %2, p; }"
                 : "=r"(r)
                 : "r"(x), "r"(y), "r"((u32)is_first));
    return r;
}
/* The assembler delays an arrival past hundreds of independent instructions, but not past a branch such as this one,
   which is hardly ever taken. */
DEVICE void stay_in_order() {
    asm volatile("{ .reg .pred p; .reg .u32 now; again: mov.u32 now, %clock; setp.eq.u32 p, now, 0; @p bra again; }" ::
                     : "memory");
}

/* Descriptor of a wgmma operand in rows of 128, 64 or 32 bytes with the swizzle of that size: K-major, with rows one
   after another; or, if `panel_bytes` is not 0, MN-major, in panels at this distance in bytes. It may start at any
   row. */
template <u32 ROW_BYTES = 128> DEVICE u64 operand(u32 address, u32 panel_bytes) {
    constexpr u64 SWIZZLE = (u64)(ROW_BYTES == 128  ? 1
                                  : ROW_BYTES == 64 ? 2
                                                    : 3)
                            << 62,
                  EIGHT_ROWS = (u64)(8 * ROW_BYTES >> 4) << 32;
    return SWIZZLE | EIGHT_ROWS | (u64)((panel_bytes ? panel_bytes : 16) >> 4) << 16 | (address & 0x3FFFF) >> 4;
}
