/* amax: the largest magnitude that a kernel makes of a result, as one float that all its blocks raise. */

/* By a whole warp. Floats that are not negative have the order of their bits, read as integers. Most warps raise
   nothing, which a load tells. */
DEVICE void raise_largest(float *to, float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x = fmax(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    if (threadIdx.x % 32 == 0 && x > 0 && x > *(const volatile float *)to)
        atomicMax((int *)to, __float_as_int(x));
}
