/* row_operands: L2 prefetches of the blocks of row kernels. Include after strip.cuh */

/* Prefetches the block's part of a strip to L2; one thread per group issues it. */
DEVICE void prefetch_strip(const arguments &a, i64 tile, int rank) {
    const span s = span_of(a, tile, rank, 0);
    const position first = rank * (KEPT * GROUP), rest = (position)vectors_of(a, s.strip) - first;
    const position vectors = IS_WHOLE ? KEPT * GROUP : rest < KEPT * GROUP ? rest : KEPT * GROUP;
    if (tile < a.jobs && s.inside && s.lane == 0 && vectors > 0)
        prefetch_kept(a, base_of(a, s.strip), first, vectors);
}

DEVICE void load_all_broadcast(broadcast (&all)[OWN], const arguments &a, const span &s) {
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        if (IS_WHOLE || vector_of(s, step) < vectors_of(a, s.strip))
            load_broadcast(all[step], a, s.strip, vector_of(s, step));
    if constexpr (UNALIGNED > 0)
        if (has_unaligned(a, s))
            load_broadcast<1>(all[KEPT], a, s.strip, s.lane);
}
