/* ptx_base: single instructions that kernels of all devices use, one per function and named after it, in namespace ptx.
   A comment names the oldest architecture that has an instruction unless it is sm_75; callers check CHIP. Instructions
   of Hopper only are in ptx_sm90.cuh, products of a warp in ptx_mma.cuh. Shared memory addresses have 32 bits. Volatile
   instructions keep their order relative to each other; those that clobber memory also relative to all accesses. */

namespace ptx {

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

/* ---- Conversions; the first argument of a pair becomes the upper half ---- */

DEVICE float cvt_f32_f16(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
DEVICE u16 cvt_f16(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
DEVICE u16 cvt_f16(double x) {
    u16 y;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y) : "d"(x));
    return y;
}
DEVICE u16 cvt_bf16(float x) { /* sm_80 */
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
DEVICE u32 cvt_f16x2(float high, float low) { /* sm_80 */
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
DEVICE u32 cvt_bf16x2(float high, float low) { /* sm_80 */
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
DEVICE u32 cvt_tf32(float x) { /* sm_80 */
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}
DEVICE u16 cvt_e4m3x2(float high, float low) { /* sm_89; saturates */
    u16 y;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
}
DEVICE u16 cvt_e5m2x2(float high, float low) { /* sm_89; saturates */
    u16 y;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
}
DEVICE u16 cvt_e4m3x2(u32 halves) { /* sm_89; saturates */
    u16 y;
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(y) : "r"(halves));
    return y;
}
DEVICE u16 cvt_e5m2x2(u32 halves) { /* sm_89; saturates */
    u16 y;
    asm("cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;" : "=h"(y) : "r"(halves));
    return y;
}
DEVICE u32 cvt_f16x2_e4m3x2(u16 x) { /* sm_89 */
    u32 y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));
    return y;
}
DEVICE u32 cvt_f16x2_e5m2x2(u16 x) { /* sm_89 */
    u32 y;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(y) : "h"(x));
    return y;
}

/* ---- Arithmetic; approximations have at most 2 units in the last place of error ---- */

DEVICE float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float rsqrt(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Relative error 2^-11. */
DEVICE float tanh(float x) { /* sm_75 */
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* NaN if either is. */
DEVICE float max_nan(float a, float b) { /* sm_80 */
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
DEVICE float min_nan(float a, float b) { /* sm_80 */
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* ---- Bits ---- */

/* Returns 2 bits + the carry of a + b. */
DEVICE u32 shift_carry_in(u32 bits, u32 a, u32 b) {
    u32 y;
    asm("{ .reg .u32 sum; add.cc.u32 sum, %2, %3; addc.u32 %0, %1, %1; }" : "=r"(y) : "r"(bits), "r"(a), "r"(b));
    return y;
}
/* Digit 8 + i of CHOICE selects a byte whose bits all equal the sign of byte i. */
template <u32 CHOICE> DEVICE u32 spread_signs(u32 x) {
    u32 y;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(x), "n"(CHOICE));
    return y;
}

/* ---- Pairs of 16 bits, sm_80 ---- */

DEVICE u32 max_nan_f16x2(u32 a, u32 b) {
    u32 y;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 max_nan_bf16x2(u32 a, u32 b) {
    u32 y;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 max_f16x2(u32 a, u32 b) {
    u32 y;
    asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 max_bf16x2(u32 a, u32 b) {
    u32 y;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 add_f16x2(u32 a, u32 b) {
    u32 y;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 sub_f16x2(u32 a, u32 b) {
    u32 y;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
/* Returns a * b + c, rounded once. */
DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
/* Each of these sets all bits of a half if its condition holds: a > b or unordered; NaN; equal. */
DEVICE u32 set_gtu_f16x2(u32 a, u32 b) {
    u32 mask;
    asm("set.gtu.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
DEVICE u32 set_gtu_bf16x2(u32 a, u32 b) { /* sm_90 */
    u32 mask;
    asm("set.gtu.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
DEVICE u32 set_nan_f16x2(u32 a) {
    u32 mask;
    asm("set.nan.u32.f16x2 %0, %1, %1;" : "=r"(mask) : "r"(a));
    return mask;
}
DEVICE u32 set_nan_bf16x2(u32 a) { /* sm_90 */
    u32 mask;
    asm("set.nan.u32.bf16x2 %0, %1, %1;" : "=r"(mask) : "r"(a));
    return mask;
}
DEVICE u32 set_eq_f16x2(u32 a, u32 b) {
    u32 mask;
    asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
/* Two instructions each, because predicates cannot leave the asm statement: half(0) and half(1) where the halves of a
   and b are equal, else 0; and the same added to the current values. */
template <class F> DEVICE void select_where_equal(float &low, float &high, u32 a, u32 b, const F &half) {
    asm("{\n.reg .pred p, q;\nsetp.eq.f16x2 p|q, %2, %3;\nselp.f32 %0, %4, 0f00000000, p;\nselp.f32 %1, %5, "
        "0f00000000, q;\n}"
        : "=f"(low), "=f"(high)
        : "r"(a), "r"(b), "f"(half(0)), "f"(half(1)));
}
template <class F> DEVICE void add_where_equal(float &low, float &high, u32 a, u32 b, const F &half) {
    asm("{\n.reg .pred p, q;\nsetp.eq.f16x2 p|q, %2, %3;\n@p add.f32 %0, %0, %4;\n@q add.f32 %1, %1, %5;\n}"
        : "+f"(low), "+f"(high)
        : "r"(a), "r"(b), "f"(half(0)), "f"(half(1)));
}

/* ---- Integers ---- */

DEVICE u64 mul_wide(u32 a, u32 b) {
    u64 y;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(y) : "r"(a), "r"(b));
    return y;
}

/* The float that consists of two halves, the lower one first. */
DEVICE float mov_pair(u16 low, u16 high) {
    float y;
    asm("mov.b32 %0, {%1, %2};" : "=f"(y) : "h"(low), "h"(high));
    return y;
}
/* Selects four of the eight bytes of two words, each by a digit, the lowest byte first. */
DEVICE u32 prmt(u32 a, u32 b, u32 digits) {
    u32 y;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(digits));
    return y;
}
/* Any function of three bits, bit by bit: the table is its value for 0xf0, 0xcc and 0xaa as a, b and c. */
template <u32 TABLE> DEVICE u32 lop3(u32 a, u32 b, u32 c) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(y) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
    return y;
}
/* No instruction: makes the compiler forget what it knows of a word. forget is also ordered with volatile
   statements. */
DEVICE void hide(u32 &x) { asm("" : "+r"(x)); }
DEVICE void forget(u32 &x) { asm volatile("" : "+r"(x)); }

/* ---- Memory ---- */

DEVICE void ld_global_v4(u32 (&r)[4], u64 p) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p));
}
DEVICE void ld_global_v2(u32 (&r)[2], u64 p) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "l"(p));
}
DEVICE void st_global_v4(u64 p, const u32 (&r)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]));
}
DEVICE void st_global_v2(u64 p, const u32 (&r)[2]) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(r[0]), "r"(r[1]));
}
/* Bypasses L1; .cs: evicted first by all caches. */
DEVICE void ld_global_no_allocate_v4(u32 (&r)[4], const void *p) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "l"(p));
}
DEVICE void st_global_no_allocate_v4(void *p, const u32 (&r)[4]) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(r[0]), "r"(r[1]), "r"(r[2]),
                 "r"(r[3])
                 : "memory");
}
DEVICE void st_global_cs_v4(void *p, const u32 (&r)[4]) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
DEVICE void ld_shared_v4(u32 (&r)[4], u32 address) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
DEVICE void ld_shared_v2(u32 (&r)[2], u32 address) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address));
}
/* Several threads of a block may do so at once to one word. */
DEVICE void st_relaxed_shared(u32 address, u32 x) {
    asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
/* Counts up to `most` and then restarts from 0. Earlier writes of a thread are visible to those that count later. */
DEVICE u32 atom_inc_shared(u32 address, u32 most) {
    u32 before;
    asm volatile("atom.acq_rel.cta.shared.inc.u32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(most) : "memory");
    return before;
}
/* Adds to a word in global memory. Earlier writes of the thread are visible to those that read the sum with
   ld_acquire. */
DEVICE void red_release_add(u32 *p, u32 x) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
DEVICE u32 ld_acquire(const u32 *p) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
DEVICE u32 atom_add(u32 *p, u32 x) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(x) : "memory");
    return before;
}

/* ---- Copies from global to shared memory without registers, sm_80; of BYTES or 16, the first `bytes`, then zeros
   ---- */

/* .ca: caches in L1; .cg: bypasses L1. */
template <int BYTES> DEVICE void cp_async_ca(u32 to, const void *p, u32 bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(p), "n"(BYTES), "r"(bytes) : "memory");
}
DEVICE void cp_async_cg(u32 to, const void *p, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(p), "r"(bytes) : "memory");
}
/* Also prefetches the surrounding 128 bytes into L2. */
DEVICE void cp_async_cg_128(u32 to, const void *p, u32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(p), "r"(bytes) : "memory");
}
DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
/* L2 policies of copies: their lines are evicted first, or last. */
DEVICE u64 createpolicy_evict_first() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEVICE u64 createpolicy_evict_last() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* ---- Barriers and launches ---- */

/* Waits for `threads` threads of a block, in whole warps, that name the same barrier, 0 .. 15. */
DEVICE void bar_sync(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/* Programmatic dependent launch, sm_90: waits for the preceding grid, and lets the next grid start. */
DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
/* Prefetches memory to L2, in multiples of 16 bytes; sm_90. */
DEVICE void prefetch_l2(const void *p, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((u64)p), "r"(bytes) : "memory");
}

} // namespace ptx
