/* amax: the largest magnitude of a result, as one float that all blocks of a kernel update. */

/* Called by a whole warp. Non-negative floats compare as integers. Most warps do not raise the maximum, which a load
   shows without an atomic. */
DEVICE void raise_amax(float *to, float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x = fmax(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    if (threadIdx.x % 32 == 0 && x > 0 && x > *(const volatile float *)to)
        atomicMax((int *)to, __float_as_int(x));
}
