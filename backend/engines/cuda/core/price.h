/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of all cost estimates: rates that an H200 reaches, so that the estimates of different families are
   comparable. `python -m benchmarks --predict` prints estimates next to measurements. */
#ifndef WEFT_ENGINES_CUDA_PRICE_H
#define WEFT_ENGINES_CUDA_PRICE_H

#include "runtime/device.h"

/* The share of the nominal bandwidth that sweeps over large memory reach: copies 0.88, norms and transposes 0.82 to
   0.86. */
static const double PRICE_MEMORY_SHARE = 0.86;
enum { PRICE_SECTOR_BYTES = 32 }; /* the smallest memory transaction */
/* launch cost of a kernel that follows another one, including its first memory latency */
static const double PRICE_LAUNCH_SECONDS = 1e-6;

/* Time to read and write this many bytes of memory once. Caches are ignored: callers count data twice that is read
   twice. */
static inline double price_moving(double bytes, const struct device *device) {
    return bytes / (PRICE_MEMORY_SHARE * (double)device->cuda.bandwidth);
}

#endif
