/* SPDX-License-Identifier: Apache-2.0 */
/* The files of kernels/, embedded as they stand: the assembler copies each between two labels. A new file is one line in
   each list. */
#include "engines/cuda/kernel.h"

#define EMBED(symbol, path)                                                                                            \
    __asm__(".pushsection .rodata\n.global weft_kernel_" #symbol "\n.hidden weft_kernel_" #symbol                      \
            "\nweft_kernel_" #symbol ":\n.incbin \"" path "\"\n.byte 0\n.popsection\n");                               \
    extern const char weft_kernel_##symbol[];

EMBED(lib_types, "lib/types.cuh")
EMBED(lib_index, "lib/index.cuh")
EMBED(lib_math, "lib/math.cuh")
EMBED(lib_gather, "lib/gather.cuh")
EMBED(lib_mma, "lib/mma.cuh")
EMBED(lib_staging, "lib/staging.cuh")
EMBED(lib_tiles, "lib/tiles.cuh")
EMBED(combine, "combine.cuh")
EMBED(contraction_fma, "contraction_fma.cuh")
EMBED(contraction_mma, "contraction_mma.cuh")
EMBED(lib_groups, "lib/groups.cuh")
EMBED(lib_grouped, "lib/grouped.cuh")
EMBED(lib_grouped_sm90, "lib/grouped_sm90.cuh")
EMBED(lib_few_bits, "lib/few_bits.cuh")
EMBED(weight_only, "weight_only.cuh")
EMBED(grouped_list, "grouped_list.cuh")
EMBED(depthwise_filter, "depthwise_filter.cuh")
EMBED(depthwise_mma, "depthwise_mma.cuh")
EMBED(stem_data, "stem_data.cuh")
EMBED(stem_filter, "stem_filter.cuh")
EMBED(lib_lattice, "lib/lattice.cuh")
EMBED(lib_pixels, "lib/pixels.cuh")
EMBED(direct, "direct.cuh")
EMBED(lib_window, "lib/window.cuh")
EMBED(window, "window.cuh")
EMBED(window_bwd, "window_bwd.cuh")
EMBED(lib_pool, "lib/pool.cuh")
EMBED(lib_planes, "lib/planes.cuh")
EMBED(lib_pool_results, "lib/pool_results.cuh")
EMBED(pool, "pool.cuh")
EMBED(pool_loose, "pool_loose.cuh")
EMBED(pool_whole, "pool_whole.cuh")
EMBED(pool_planes, "pool_planes.cuh")
EMBED(pool_planes_bwd, "pool_planes_bwd.cuh")
EMBED(pool_team, "pool_team.cuh")
EMBED(pool_boxes, "pool_boxes.cuh")
EMBED(pool_bwd, "pool_bwd.cuh")
EMBED(move, "move.cuh")
EMBED(join, "join.cuh")
EMBED(lib_chunks, "lib/chunks.cuh")
EMBED(rng, "rng.cuh")
EMBED(lib_scales, "lib/scales.cuh")
EMBED(block_scales, "block_scales.cuh")
EMBED(block_values, "block_values.cuh")
EMBED(map, "map.cuh")
EMBED(map_tile, "map_tile.cuh")
EMBED(turn, "turn.cuh")
EMBED(lib_exchange, "lib/exchange.cuh")
EMBED(lib_overlap, "lib/overlap.cuh")
EMBED(lib_reduce, "lib/reduce.cuh")
EMBED(lib_stream, "lib/stream.cuh")
EMBED(lib_stretch, "lib/stretch.cuh")
EMBED(rows, "rows.cuh")
EMBED(channels, "channels.cuh")
EMBED(rows_pipe, "rows_pipe.cuh")
EMBED(base_philox, "../../../base/philox.h")
EMBED(lib_async, "lib/async.cuh")
EMBED(lib_attention, "lib/attention.cuh")
EMBED(lib_attention_end, "lib/attention_end.cuh")
EMBED(lib_attention_gradient, "lib/attention_gradient.cuh")
EMBED(lib_philox, "lib/philox.cuh")
EMBED(lib_warp_tiles, "lib/warp_tiles.cuh")
EMBED(attention_bwd, "attention_bwd.cuh")
EMBED(attention_bwd_bias, "attention_bwd_bias.cuh")
EMBED(attention_bwd_rows, "attention_bwd_rows.cuh")
EMBED(attention_bwd_sink, "attention_bwd_sink.cuh")
EMBED(attention_dump, "attention_dump.cuh")
EMBED(attention_fwd, "attention_fwd.cuh")
EMBED(attention_merge, "attention_merge.cuh")

EMBED(lib_ptx_sm90, "lib/ptx_sm90.cuh")
EMBED(lib_places, "lib/places.cuh")
EMBED(lib_slabs, "lib/slabs.cuh")
EMBED(lib_totals, "lib/totals.cuh")
EMBED(totals, "totals.cuh")
EMBED(hopper, "hopper.cuh")
EMBED(stem, "stem.cuh")
EMBED(patch_sm90, "patch_sm90.cuh")
EMBED(stem_sm90, "stem_sm90.cuh")
EMBED(depthwise, "depthwise.cuh")

static const struct program_header files[] = {
    {"lib/types.cuh", weft_kernel_lib_types},
    {"lib/index.cuh", weft_kernel_lib_index},
    {"lib/math.cuh", weft_kernel_lib_math},
    {"lib/gather.cuh", weft_kernel_lib_gather},
    {"lib/ptx_sm90.cuh", weft_kernel_lib_ptx_sm90},
    {"lib/places.cuh", weft_kernel_lib_places},
    {"lib/slabs.cuh", weft_kernel_lib_slabs},
    {"lib/totals.cuh", weft_kernel_lib_totals},
    {"totals.cuh", weft_kernel_totals},
    {"hopper.cuh", weft_kernel_hopper},
    {"stem.cuh", weft_kernel_stem},
    {"patch_sm90.cuh", weft_kernel_patch_sm90},
    {"stem_sm90.cuh", weft_kernel_stem_sm90},
    {"depthwise.cuh", weft_kernel_depthwise},
    {"lib/mma.cuh", weft_kernel_lib_mma},
    {"lib/staging.cuh", weft_kernel_lib_staging},
    {"lib/tiles.cuh", weft_kernel_lib_tiles},
    {"combine.cuh", weft_kernel_combine},
    {"contraction_fma.cuh", weft_kernel_contraction_fma},
    {"contraction_mma.cuh", weft_kernel_contraction_mma},
    {"depthwise_filter.cuh", weft_kernel_depthwise_filter},
    {"depthwise_mma.cuh", weft_kernel_depthwise_mma},
    {"stem_data.cuh", weft_kernel_stem_data},
    {"stem_filter.cuh", weft_kernel_stem_filter},
    {"lib/lattice.cuh", weft_kernel_lib_lattice},
    {"lib/pixels.cuh", weft_kernel_lib_pixels},
    {"direct.cuh", weft_kernel_direct},
    {"lib/window.cuh", weft_kernel_lib_window},
    {"window.cuh", weft_kernel_window},
    {"window_bwd.cuh", weft_kernel_window_bwd},
    {"lib/pool.cuh", weft_kernel_lib_pool},
    {"lib/planes.cuh", weft_kernel_lib_planes},
    {"lib/pool_results.cuh", weft_kernel_lib_pool_results},
    {"pool.cuh", weft_kernel_pool},
    {"pool_loose.cuh", weft_kernel_pool_loose},
    {"pool_whole.cuh", weft_kernel_pool_whole},
    {"pool_planes.cuh", weft_kernel_pool_planes},
    {"pool_planes_bwd.cuh", weft_kernel_pool_planes_bwd},
    {"pool_team.cuh", weft_kernel_pool_team},
    {"pool_boxes.cuh", weft_kernel_pool_boxes},
    {"pool_bwd.cuh", weft_kernel_pool_bwd},
    {"move.cuh", weft_kernel_move},
    {"join.cuh", weft_kernel_join},
    {"lib/chunks.cuh", weft_kernel_lib_chunks},
    {"lib/groups.cuh", weft_kernel_lib_groups},
    {"lib/grouped.cuh", weft_kernel_lib_grouped},
    {"lib/grouped_sm90.cuh", weft_kernel_lib_grouped_sm90},
    {"lib/few_bits.cuh", weft_kernel_lib_few_bits},
    {"weight_only.cuh", weft_kernel_weight_only},
    {"grouped_list.cuh", weft_kernel_grouped_list},
    {"rng.cuh", weft_kernel_rng},
    {"lib/scales.cuh", weft_kernel_lib_scales},
    {"block_scales.cuh", weft_kernel_block_scales},
    {"block_values.cuh", weft_kernel_block_values},
    {"map.cuh", weft_kernel_map},
    {"map_tile.cuh", weft_kernel_map_tile},
    {"turn.cuh", weft_kernel_turn},
    {"lib/exchange.cuh", weft_kernel_lib_exchange},
    {"lib/overlap.cuh", weft_kernel_lib_overlap},
    {"lib/reduce.cuh", weft_kernel_lib_reduce},
    {"lib/stream.cuh", weft_kernel_lib_stream},
    {"lib/stretch.cuh", weft_kernel_lib_stretch},
    {"rows.cuh", weft_kernel_rows},
    {"channels.cuh", weft_kernel_channels},
    {"rows_pipe.cuh", weft_kernel_rows_pipe},
    {"base/philox.h", weft_kernel_base_philox},
    {"lib/async.cuh", weft_kernel_lib_async},
    {"lib/attention.cuh", weft_kernel_lib_attention},
    {"lib/attention_end.cuh", weft_kernel_lib_attention_end},
    {"lib/attention_gradient.cuh", weft_kernel_lib_attention_gradient},
    {"lib/philox.cuh", weft_kernel_lib_philox},
    {"lib/warp_tiles.cuh", weft_kernel_lib_warp_tiles},
    {"attention_bwd.cuh", weft_kernel_attention_bwd},
    {"attention_bwd_bias.cuh", weft_kernel_attention_bwd_bias},
    {"attention_bwd_rows.cuh", weft_kernel_attention_bwd_rows},
    {"attention_bwd_sink.cuh", weft_kernel_attention_bwd_sink},
    {"attention_dump.cuh", weft_kernel_attention_dump},
    {"attention_fwd.cuh", weft_kernel_attention_fwd},
    {"attention_merge.cuh", weft_kernel_attention_merge},
};

const struct program_header *kernel_files(int *count) {
    *count = sizeof files / sizeof *files;
    return files;
}
