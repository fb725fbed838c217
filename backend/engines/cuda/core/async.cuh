/* async: copies from global to shared memory that pass by the registers, sm_80 and newer. A thread groups its copies with
   commit_copies; await_copies returns when at most PENDING of its latest groups are still under way. Other threads see
   what was copied after the next barrier. */

/* 4, 8 or 16 bytes, both sides aligned to as many; zeros when not `take`, and nothing is read. */
template <int BYTES> DEVICE void copy_async(void *shared, const void *global, bool take) {
    const u32 to = (u32)__cvta_generic_to_shared(shared), bytes = take ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(bytes)
                     : "memory");
}
/* 16 bytes that nobody else reads: their neighbours come into the second-level cache, too. */
DEVICE void copy_async_once(void *shared, const void *global, bool take) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(take ? 16 : 0)
                 : "memory");
}
/* 16 bytes that other warps soon read: they come into the first-level cache, too. */
DEVICE void copy_async_often(void *shared, const void *global, bool take) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(take ? 16 : 0)
                 : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
