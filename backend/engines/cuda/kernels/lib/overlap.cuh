/* overlap: the start of a kernel while the one before it ends, which hides most of a short kernel's launch. Chips before
   sm_90 have no such thing, and start kernels one after the other. */

/* Waits for what the kernel before has written, then lets the next one start, which waits here in turn. */
DEVICE void begin_overlapped() {
    if constexpr (CHIP >= 900) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    }
}
