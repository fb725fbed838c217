/* coordinates: the position of the producer of the Hopper products: the tile's corner, the pixel and the taps in an
   image, and the step along k. Features that a product does not use cost nothing: their constants are generated as
   false, and their arguments are not looked up
   K         (tap, channel), channels innermost; or, for a filter gradient, the pixels of all images (K_IS_PIXELS),
             which may be one plane per image in one of the operands; if they are in both, images take the role of taps
             and pixels that of channels
   Taps      in three spatial dimensions, outermost first; dimensions that an image lacks have one tap
   Requires  STORED_BYTES K_IS_PIXELS HAS_TAPS */

constexpr i32 BLOCK_K = 128 / STORED_BYTES; /* a row of the 128-byte swizzle */

/* The taps of one dimension: their number, the index of each in the filter, and its offset from a pixel. */
struct taps {
    i32 count, filter, filter_step, offset, offset_step;
};

/* The taps that a phase of a strided data gradient sees, as packed by the host. */
DEVICE taps unpack_taps(i64 word, i32 filter_step, i32 offset_step) {
    return {(i32)(word & 0xffff), (i32)(word >> 16 & 0xffff), filter_step, (i32)(word >> 32), offset_step};
}

struct pixel {
    i32 image, d, h, w;
};

/* The pixel under the first tap of a position: images, then rows, then columns. This function and those below are
   templates, so that arguments that were not generated are not looked up. */
template <class P> DEVICE pixel find_pixel(const P &p, u32 position) {
    const i32 w = (i32)split(position, p.positions2), h = (i32)split(position, p.positions1),
              d = (i32)split(position, p.positions0);
    return {(i32)position, d * (i32)p.stride0 + (i32)p.start0, h * (i32)p.stride1 + (i32)p.start1,
            w * (i32)p.stride2 + (i32)p.start2};
}

struct tile_coordinates {
    index z;
    i32 row, column;
    i32 row_end; /* end of the existing rows */
    u32 split;
    i32 entry[2]; /* batch indices of the tensor maps */
    pixel from;
    taps tap[3];
    i32 used[3];     /* rows, columns and k of this entry, if overridden */
    i32 phase_steps; /* steps of this entry, if their number depends on phases of a data gradient or on groups */

    DEVICE i32 filter(int dim, i32 t) const { return tap[dim].filter + t * tap[dim].filter_step; }
    DEVICE i32 offset(int dim, i32 t) const { return tap[dim].offset + t * tap[dim].offset_step; }
};

/* Returns a used size: its override, clamped to the actual size. */
DEVICE i32 used_of(i64 override, i64 all) { return (i32)(override < 0 ? 0 : override < all ? override : all); }

/* The position along k: channels within taps, or pixels. */
struct k_cursor {
    i32 c = 0, tap[3] = {0, 0, 0};
    i32 position = 0;
    pixel from;

    template <class P> DEVICE k_cursor(const P &p, const tile_coordinates &at, i32 step) {
        if constexpr (K_IS_PIXELS) {
            position = step * BLOCK_K;
            from = find_pixel(p, position);
        } else if constexpr (HAS_TAPS) {
            const i32 blocks = ((i32)p.channels + BLOCK_K - 1) / BLOCK_K;
            i32 rest = step / blocks;
            c = step % blocks * BLOCK_K;
            if (rest > 0) {
                tap[2] = rest % at.tap[2].count, rest /= at.tap[2].count;
                tap[1] = rest % at.tap[1].count, tap[0] = rest / at.tap[1].count;
            }
        } else {
            c = step * BLOCK_K;
        }
    }
    template <class P> DEVICE void advance(const P &p, const tile_coordinates &at) {
        if constexpr (K_IS_PIXELS) {
            from = find_pixel(p, position += BLOCK_K);
        } else if constexpr (HAS_TAPS) {
            if ((c += BLOCK_K) < (i32)p.channels)
                return;
            c = 0;
            if (++tap[2] < at.tap[2].count)
                return;
            tap[2] = 0;
            if (++tap[1] < at.tap[1].count)
                return;
            tap[1] = 0;
            ++tap[0];
        } else {
            c += BLOCK_K;
        }
    }
};
