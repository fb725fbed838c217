/* SPDX-License-Identifier: Apache-2.0 */
/* What all prices are made of: rates that an H200 reaches, so that seconds of different families compare.
   `python -m weft bench --predict` stands them beside what was measured. */
#ifndef WEFT_ENGINES_CUDA_PRICE_H
#define WEFT_ENGINES_CUDA_PRICE_H

#include "runtime/device.h"

/* Of the nominal bandwidth, what sweeps over large memory reach: copies 0.88, norms and transposes 0.82 to 0.86. */
static const double PRICE_MEMORY_SHARE = 0.86;
enum { PRICE_SECTOR_BYTES = 32 };                /* the least that is read or written of memory */
static const double PRICE_LAUNCH_SECONDS = 1e-6; /* of a kernel behind another one, with its first trip to memory */

/* To read and write so many bytes of memory once. Caches are left out: what is read twice must be counted twice by the
   caller. */
static inline double price_moving(double bytes, const struct device *device) {
    return bytes / (PRICE_MEMORY_SHARE * (double)device->cuda.bandwidth);
}

#endif
