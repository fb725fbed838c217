/* backward_work: which rows, heads and blocks a CTA of backward_sm90 processes, and in which order */

struct work {
    band visible;
    i32 resident, head, batch; /* the first resident row, and its head in the resident tensors */
    i32 part;                  /* has_parts: index over all resident heads of the batch entry */
    i32 first, last;           /* range of streamed blocks, per head */
    i32 steps;                 /* over all heads */
    box_origin qk_at, vdo_at;  /* TMA coordinates of the streamed tensors */

    DEVICE i32 resident_used() const { return CONFIG.kv_resident ? visible.keys : visible.queries; }
    DEVICE i32 streamed_used() const { return CONFIG.kv_resident ? visible.queries : visible.keys; }
    /* Streamed rows that are visible to a resident row, or that see it: low .. high - 1. Both grow with the row. */
    DEVICE i32 low(i32 row) const { return CONFIG.kv_resident ? row + visible.first : row - visible.last + 1; }
    DEVICE i32 high(i32 row) const {
        return CONFIG.kv_resident ? row + visible.last : min(row - visible.first + 1, visible.keys);
    }
};
constexpr bool HAS_LOW = CONFIG.kv_resident ? HAS_RIGHT : HAS_LEFT, HAS_HIGH = CONFIG.kv_resident ? HAS_LEFT : true;

/* Range of query heads: those that share the resident keys, or the head of the resident queries. */
template <class P> DEVICE i32 first_head(const P &p, const work &w) {
    i32 head = CONFIG.kv_resident ? w.head * (i32)p.group : w.head;
    if constexpr (CONFIG.has_parts)
        head += (w.part - w.head * (i32)p.parts) * (i32)p.heads_per_part;
    return head;
}
template <class P> DEVICE i32 last_head(const P &p, const work &w) {
    const i32 last = CONFIG.kv_resident ? (w.head + 1) * (i32)p.group : w.head + 1;
    if constexpr (CONFIG.has_parts)
        return min(first_head(p, w) + (i32)p.heads_per_part, last);
    else
        return last;
}

/* True if a streamed block is in an active tile of the block mask; head: of the queries. */
template <class P> DEVICE bool is_active_block(const P &p, const work &w, i32 head, i32 block) {
    const i32 streamed = block * CONFIG.block_streamed;
    return is_active_tile(p, w.batch, head, CONFIG.kv_resident ? streamed : w.resident,
                          CONFIG.kv_resident ? w.resident : streamed);
}
/* For a whole warp: the shuffle shows the compiler that the result is warp-uniform. */
template <class P> DEVICE bool is_active_for_warp(const P &p, const work &w, i32 head, i32 block) {
    return __shfl_sync(~0u, is_active_block(p, w, head, block), 0);
}
/* Counts the active steps, by whole warps. */
template <class P> DEVICE i32 count_steps(const P &p, const work &w) {
    i32 count = 0;
    for (i32 head = first_head(p, w), last = last_head(p, w); head < last; ++head)
        for (i32 from = w.first; from < w.last; from += 32) {
            const i32 block = from + (i32)lane_index();
            count += __popc(__ballot_sync(~0u, block < w.last && is_active_block(p, w, head, block)));
        }
    return count;
}

/* Splits w.head, which counts parts, into head and part. */
template <class P> DEVICE void find_part(const P &p, work &w) {
    w.part = w.head;
    w.head /= (i32)p.parts;
}

/* The CTA's resident rows. Their order puts those with most steps first: the first keys, or the last queries. */
DEVICE work find_resident_rows(const arguments &p) {
    const u32 blocks = (u32)p.resident_blocks, set_heads = (u32)p.heads_per_set,
              set = blockIdx.x / (blocks * set_heads);
    const u32 within = blockIdx.x - set * blocks * set_heads,
              heads = min(gridDim.x / blocks - set * set_heads, set_heads);
    const u32 number = within / heads, outer = set * set_heads + within - number * heads;
    const u32 block = CONFIG.kv_resident ? number : blocks - 1 - number, batch = outer / (u32)p.resident_heads;
    work w{band(p, (i32)batch), (i32)block * BLOCK_RESIDENT, (i32)(outer - batch * (u32)p.resident_heads), (i32)batch};
    if constexpr (CONFIG.has_parts)
        find_part(p, w);
    return w;
}
DEVICE work find_work(const arguments &p) {
    work w = find_resident_rows(p);
    w.qk_at = streamed_qk_entry(p, w.batch, w.streamed_used());
    w.vdo_at = streamed_vdo_entry(p, w.batch, w.streamed_used());
    const i32 last_resident = min(w.resident + BLOCK_RESIDENT, w.resident_used()) - 1;
    if (last_resident < w.resident)
        return w;
    w.first = max(w.low(w.resident), 0) / CONFIG.block_streamed;
    w.last = max((min(w.high(last_resident), w.streamed_used()) + CONFIG.block_streamed - 1) / CONFIG.block_streamed,
                 w.first);
    w.steps = HAS_BLOCK_MASK ? count_steps(p, w) : (w.last - w.first) * (last_head(p, w) - first_head(p, w));
    return w;
}

/* The streamed block of a step. With a block mask, w.steps determines which active block is the last one. */
struct cursor {
    i32 block, head;
    DEVICE explicit cursor(const arguments &p, const work &w)
        : block(w.first), head(CONFIG.kv_resident ? first_head(p, w) : w.head / (i32)p.group) {
        if (HAS_BLOCK_MASK && w.steps > 0)
            skip_inactive(p, w);
    }
    DEVICE void advance(const arguments &p, const work &w, bool is_last = false) {
        step(w);
        if (HAS_BLOCK_MASK && !is_last)
            skip_inactive(p, w);
    }
    DEVICE void step(const work &w) {
        if (++block < w.last)
            return;
        block = w.first;
        ++head;
    }
    DEVICE void skip_inactive(const arguments &p, const work &w) {
        while (!is_active_block(p, w, CONFIG.kv_resident ? head : w.head, block))
            step(w);
    }
};

/* Index of a block of block_q queries over all heads. */
DEVICE i64 q_tile(const arguments &p, i32 batch, i32 head, i32 block) {
    return (i64)(batch * (i32)p.heads + head) * p.q_blocks + block;
}

/* Head of the streamed V or dO. */
template <class P> DEVICE i32 vdo_head(const P &p, const work &w, const cursor &at) {
    if constexpr (!CONFIG.kv_resident && CONFIG.kv_heads_differ)
        return w.head / (i32)p.other_group_size;
    else
        return at.head;
}
/* kv_heads_differ: for a query head, the head of the resident tensor whose gradient this CTA does not compute. */
template <class P> DEVICE i32 other_head(const P &p, i32 head) {
    if constexpr (CONFIG.kv_heads_differ)
        return head / (i32)p.other_group_size;
    else
        return 0;
}
constexpr bool RELOADS = CONFIG.kv_resident && CONFIG.kv_heads_differ;
