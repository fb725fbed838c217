/* dependent_launch: programmatic dependent launch, the start of a kernel while the one before it ends, which hides most
   of a short kernel's launch. Chips before sm_90 have no such thing, and start kernels one after the other. */

/* Asks for memory that will be read, in units of 16 bytes, before what writes it may have ended: all writing goes
   through L2, so what waits there is never old. One thread of a block asks for all of it; asked one by
   one, lines come late. */
DEVICE void expect(const void *p, u32 bytes) { ptx::prefetch_l2(p, bytes); }

/* Waits for what the kernel before has written, then lets the next one start, which waits here in turn. */
DEVICE void begin_overlapped() {
    if constexpr (CHIP >= 900) {
        ptx::griddepcontrol_wait();
        ptx::griddepcontrol_launch_dependents();
    }
}
