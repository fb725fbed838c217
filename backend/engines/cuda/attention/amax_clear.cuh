/* attention_amax_clear: the largest numbers of a pass before there are any; blocks of the kernels behind it raise
     them.
   Params    clear_largest(arguments) */

#include "core/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(32, 1) attention_amax_clear(const __grid_constant__ arguments a) {
    begin_overlapped();
    clear_largest(a);
}
