/* philox: the host's generator, compiled as device code. */

#define inline __device__ __forceinline__
#define PHILOX_PRODUCT(a, b) ptx::mul_wide(a, b)
#include "base/philox.h"
#undef inline
