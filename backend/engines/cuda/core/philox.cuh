/* philox: the host's generator, read as device code. */

#define inline __device__ __forceinline__
#include "base/philox.h"
#undef inline
