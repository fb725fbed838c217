/* async: copies from global to shared memory without registers (cp.async), sm_80 and newer. commit_copies closes a
   group of a thread's copies; await_copies returns when at most the latest PENDING groups are still in flight. Other
   threads see the copied data after the next barrier. */

/* 4, 8 or 16 bytes, both sides aligned to the size. Without `take` it writes zeros and reads nothing. */
template <int BYTES> DEVICE void copy_async(void *shared, const void *global, bool take) {
    if constexpr (BYTES == 16)
        ptx::cp_async_cg(ptx::shared_address(shared), global, take ? 16 : 0);
    else
        ptx::cp_async_ca<BYTES>(ptx::shared_address(shared), global, take ? BYTES : 0);
}
/* 16 bytes that no other thread reads: also prefetches the adjacent ones into L2. */
DEVICE void copy_async_once(void *shared, const void *global, bool take) {
    ptx::cp_async_cg_128(ptx::shared_address(shared), global, take ? 16 : 0);
}
/* 16 bytes that other warps read soon: also cached in L1. */
DEVICE void copy_async_often(void *shared, const void *global, bool take) {
    ptx::cp_async_ca<16>(ptx::shared_address(shared), global, take ? 16 : 0);
}
DEVICE void commit_copies() { ptx::cp_async_commit_group(); }
template <int PENDING> DEVICE void await_copies() { ptx::cp_async_wait_group<PENDING>(); }
