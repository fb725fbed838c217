/* dependent_launch: programmatic dependent launch starts a kernel while the preceding one ends, which hides most of a
   short kernel's launch latency. Devices before sm_90 lack it and run kernels one after another. */

/* Prefetches memory to L2, in units of 16 bytes, possibly before its writer has ended: all writes go through L2, so
   prefetched lines never become stale. One thread of a block requests everything; line by line, requests arrive
   late. */
DEVICE void expect(const void *p, u32 bytes) { ptx::prefetch_l2(p, bytes); }

/* Waits for the preceding kernel's writes, then lets the next kernel start, which waits here in turn. */
DEVICE void begin_overlapped() {
    if constexpr (CHIP >= 900) {
        ptx::griddepcontrol_wait();
        ptx::griddepcontrol_launch_dependents();
    }
}
