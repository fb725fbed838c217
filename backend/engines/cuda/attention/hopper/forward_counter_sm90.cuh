/* forward_counter: resets the tile counter of the dynamic schedule for forward_sm90, which may already be launching. */

extern "C" __global__ void attention_forward_counter_sm90(const __grid_constant__ arguments a) {
    let_next_kernel_start();
    wait_for_previous_kernel(); /* an earlier kernel may still increment it */
    if (threadIdx.x == 0)
        *a.counter = 0;
}
