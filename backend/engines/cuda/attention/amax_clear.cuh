/* attention_amax_clear: clears the amax outputs of a pass before the kernels that update them
   Params    clear_amax(arguments) */

#include "core/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(32, 1) attention_amax_clear(const __grid_constant__ arguments a) {
    begin_overlapped();
    clear_amax(a);
}
