/* forward_counter: resets the counter of tiles of the forward kernel of sm_90, which starts meanwhile. */

extern "C" __global__ void attention_forward_counter_sm90(const __grid_constant__ arguments a) {
    let_next_kernel_start();
    wait_for_previous_kernel(); /* which may count still */
    if (threadIdx.x == 0)
        *a.counter = 0;
}
