/* patch_scheduler: the tiles of a block: a phase, those with many taps first; two adjacent tiles of pixels; one of
   filters */

struct tile_coordinates {
    i32 image, line, column, slice;
};

/* The taps that a phase sees: their number, index of the first one in the filter, and its offset from the patch's
   corner. */
struct taps {
    i32 rows, columns, first_row, first_column, line, column;
    DEVICE taps(i64 word)
        : rows((i32)(word & 255)), columns((i32)(word >> 8 & 255)), first_row((i32)(word >> 16 & 255)),
          first_column((i32)(word >> 24 & 255)), line((i32)(word >> 32 & 0xffff)), column((i32)(word >> 48)) {}
    DEVICE i32 number(const arguments &p, i32 r, i32 s) const {
        return (first_row + r * (i32)p.step_r) * TAPS_S + first_column + s * (i32)p.step_s;
    }
    DEVICE i32 pixel(const arguments &p, i32 r, i32 s) const {
        return (line + r * (i32)p.move_h) * PITCH + column + s * (i32)p.move_w;
    }
};

struct tile_scheduler {
    i32 index, phase;
    u32 within; /* within its phase */
    DEVICE tile_scheduler(const arguments &p) : index(blockIdx.x) { locate_phase(p); }
    DEVICE bool more(const arguments &p) const { return index < (i32)p.items; }
    DEVICE void advance(const arguments &p) {
        index += gridDim.x;
        locate_phase(p);
    }
    DEVICE void locate_phase(const arguments &p) {
        phase = HAS_PHASES ? (i32)divide((u32)index, p.items_of_phase) : 0;
        within = (u32)index - (u32)phase * p.items_of_phase.value;
    }
    DEVICE taps seen(const arguments &p) const { return taps((&p.phase0)[phase]); }
    DEVICE i32 filter(const arguments &p) const {
        u32 rest = within;
        return (i32)split(rest, p.filter_tiles) * FILTERS_OF_TILE;
    }
    /* The second tile may be after the last image: it then reads zeros and stores nothing. */
    template <class P> DEVICE tile_coordinates locate(const P &p, int group) const {
        u32 rest = divide(within, p.filter_tiles) * 2 + group;
        const i32 column = (i32)split(rest, p.tiles_q) * TILE_W, line = (i32)split(rest, p.tiles_p) * TILE_H;
        i32 slice = 0;
        if constexpr (IS_VOLUME)
            slice = (i32)split(rest, p.tiles_o) * STACK;
        return {(i32)rest, line, column, slice};
    }
};
