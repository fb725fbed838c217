/* attention_amax_clear: the largest numbers of a pass before there are any; blocks of the kernel behind it raise
     them. */

#include "core/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(32, 1) attention_amax_clear(const __grid_constant__ arguments a) {
    begin_overlapped();
    if constexpr (HAS_AMAX_S)
        *a.amax_s = 0;
    if constexpr (HAS_AMAX_O)
        *a.amax_o = 0;
}
