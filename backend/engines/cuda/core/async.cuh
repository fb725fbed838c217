/* async: copies from global to shared memory that pass by the registers, sm_80 and newer. A thread groups its copies
   with commit_copies; await_copies returns when at most PENDING of its latest groups are still under way. Other threads
   see what was copied after the next barrier. */

/* 4, 8 or 16 bytes, both sides aligned to as many; zeros when not `take`, and nothing is read. */
template <int BYTES> DEVICE void copy_async(void *shared, const void *global, bool take) {
    if constexpr (BYTES == 16)
        ptx::cp_async_cg(ptx::shared_address(shared), global, take ? 16 : 0);
    else
        ptx::cp_async_ca<BYTES>(ptx::shared_address(shared), global, take ? BYTES : 0);
}
/* 16 bytes that nobody else reads: their neighbours come into L2, too. */
DEVICE void copy_async_once(void *shared, const void *global, bool take) {
    ptx::cp_async_cg_256(ptx::shared_address(shared), global, take ? 16 : 0);
}
/* 16 bytes that other warps soon read: they come into the first-level cache, too. */
DEVICE void copy_async_often(void *shared, const void *global, bool take) {
    ptx::cp_async_ca<16>(ptx::shared_address(shared), global, take ? 16 : 0);
}
DEVICE void commit_copies() { ptx::cp_async_commit_group(); }
template <int PENDING> DEVICE void await_copies() { ptx::cp_async_wait_group<PENDING>(); }
