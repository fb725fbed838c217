/* SPDX-License-Identifier: Apache-2.0 */
/* The device files (.cuh) of all families, embedded as they stand: the assembler copies each between two labels. A new
   file is one line here; it is included by its path from engines/cuda. */
#include "engines/cuda/core/kernel.h"

#define FILES(FILE)                                                                                                    \
    FILE(base_philox, "../../base/philox.h", "base/philox.h")                                                          \
    FILE(attention_alibi, "attention/alibi.cuh", "attention/alibi.cuh")                                                \
    FILE(attention_backward, "attention/backward.cuh", "attention/backward.cuh")                                       \
    FILE(attention_backward_bias, "attention/backward_bias.cuh", "attention/backward_bias.cuh")                        \
    FILE(attention_backward_rows, "attention/backward_rows.cuh", "attention/backward_rows.cuh")                        \
    FILE(attention_backward_sink, "attention/backward_sink.cuh", "attention/backward_sink.cuh")                        \
    FILE(attention_score_functions, "attention/score_functions.cuh", "attention/score_functions.cuh")                  \
    FILE(attention_slices, "attention/slices.cuh", "attention/slices.cuh")                                             \
    FILE(attention_block_mask, "attention/block_mask.cuh", "attention/block_mask.cuh")                                 \
    FILE(attention_decode, "attention/decode.cuh", "attention/decode.cuh")                                             \
    FILE(attention_dropout, "attention/dropout.cuh", "attention/dropout.cuh")                                          \
    FILE(attention_dropout_dump, "attention/dropout_dump.cuh", "attention/dropout_dump.cuh")                           \
    FILE(attention_epilogue, "attention/epilogue.cuh", "attention/epilogue.cuh")                                       \
    FILE(attention_forward, "attention/forward.cuh", "attention/forward.cuh")                                          \
    FILE(attention_gradient, "attention/gradient.cuh", "attention/gradient.cuh")                                       \
    FILE(attention_hopper_backward_sums_sm90, "attention/hopper/backward_sums_sm90.cuh",                               \
         "attention/hopper/backward_sums_sm90.cuh")                                                                    \
    FILE(attention_hopper_backward_fp8_sm90, "attention/hopper/backward_fp8_sm90.cuh",                                 \
         "attention/hopper/backward_fp8_sm90.cuh")                                                                     \
    FILE(attention_hopper_backward_rows_sm90, "attention/hopper/backward_rows_sm90.cuh",                               \
         "attention/hopper/backward_rows_sm90.cuh")                                                                    \
    FILE(attention_hopper_backward_scores_sm90, "attention/hopper/backward_scores_sm90.cuh",                           \
         "attention/hopper/backward_scores_sm90.cuh")                                                                  \
    FILE(attention_hopper_backward_sink_sm90, "attention/hopper/backward_sink_sm90.cuh",                               \
         "attention/hopper/backward_sink_sm90.cuh")                                                                    \
    FILE(attention_hopper_backward_sm90, "attention/hopper/backward_sm90.cuh", "attention/hopper/backward_sm90.cuh")   \
    FILE(attention_hopper_dropout_sm90, "attention/hopper/dropout_sm90.cuh", "attention/hopper/dropout_sm90.cuh")      \
    FILE(attention_hopper_byte_squares_sm90, "attention/hopper/byte_squares_sm90.cuh",                                 \
         "attention/hopper/byte_squares_sm90.cuh")                                                                     \
    FILE(attention_hopper_entries_sm90, "attention/hopper/entries_sm90.cuh", "attention/hopper/entries_sm90.cuh")      \
    FILE(attention_hopper_forward_counter_sm90, "attention/hopper/forward_counter_sm90.cuh",                           \
         "attention/hopper/forward_counter_sm90.cuh")                                                                  \
    FILE(attention_hopper_forward_epilogue_sm90, "attention/hopper/forward_epilogue_sm90.cuh",                         \
         "attention/hopper/forward_epilogue_sm90.cuh")                                                                 \
    FILE(attention_hopper_forward_sm90, "attention/hopper/forward_sm90.cuh", "attention/hopper/forward_sm90.cuh")      \
    FILE(attention_hopper_forward_softmax_sm90, "attention/hopper/forward_softmax_sm90.cuh",                           \
         "attention/hopper/forward_softmax_sm90.cuh")                                                                  \
    FILE(attention_hopper_forward_tiles_sm90, "attention/hopper/forward_tiles_sm90.cuh",                               \
         "attention/hopper/forward_tiles_sm90.cuh")                                                                    \
    FILE(attention_hopper_forward_values_sm90, "attention/hopper/forward_values_sm90.cuh",                             \
         "attention/hopper/forward_values_sm90.cuh")                                                                   \
    FILE(attention_hopper_kept_share_sm90, "attention/hopper/kept_share_sm90.cuh",                                     \
         "attention/hopper/kept_share_sm90.cuh")                                                                       \
    FILE(attention_hopper_score_terms_sm90, "attention/hopper/score_terms_sm90.cuh",                                   \
         "attention/hopper/score_terms_sm90.cuh")                                                                      \
    FILE(attention_hopper_widen_sm90, "attention/hopper/widen_sm90.cuh", "attention/hopper/widen_sm90.cuh")            \
    FILE(attention_lengths, "attention/lengths.cuh", "attention/lengths.cuh")                                          \
    FILE(attention_merge_splits, "attention/merge_splits.cuh", "attention/merge_splits.cuh")                           \
    FILE(attention_online_softmax, "attention/online_softmax.cuh", "attention/online_softmax.cuh")                     \
    FILE(attention_pages, "attention/pages.cuh", "attention/pages.cuh")                                                \
    FILE(attention_amax_clear, "attention/amax_clear.cuh", "attention/amax_clear.cuh")                                 \
    FILE(attention_amax, "attention/amax.cuh", "attention/amax.cuh")                                                   \
    FILE(attention_element_scales, "attention/element_scales.cuh", "attention/element_scales.cuh")                     \
    FILE(attention_scales, "attention/scales.cuh", "attention/scales.cuh")                                             \
    FILE(attention_scores, "attention/scores.cuh", "attention/scores.cuh")                                             \
    FILE(attention_warp_tiles, "attention/warp_tiles.cuh", "attention/warp_tiles.cuh")                                 \
    FILE(causal_backward, "causal/backward.cuh", "causal/backward.cuh")                                                \
    FILE(causal_backward_channels, "causal/backward_channels.cuh", "causal/backward_channels.cuh")                     \
    FILE(causal_combine, "causal/combine.cuh", "causal/combine.cuh")                                                   \
    FILE(causal_filter, "causal/filter.cuh", "causal/filter.cuh")                                                      \
    FILE(causal_forward, "causal/forward.cuh", "causal/forward.cuh")                                                   \
    FILE(causal_strips, "causal/strips.cuh", "causal/strips.cuh")                                                      \
    FILE(core_async, "core/async.cuh", "core/async.cuh")                                                               \
    FILE(core_chunks, "core/chunks.cuh", "core/chunks.cuh")                                                            \
    FILE(core_dependent_launch, "core/dependent_launch.cuh", "core/dependent_launch.cuh")                              \
    FILE(core_gather, "core/gather.cuh", "core/gather.cuh")                                                            \
    FILE(core_index, "core/index.cuh", "core/index.cuh")                                                               \
    FILE(core_math, "core/math.cuh", "core/math.cuh")                                                                  \
    FILE(core_mma, "core/mma.cuh", "core/mma.cuh")                                                                     \
    FILE(core_philox, "core/philox.cuh", "core/philox.cuh")                                                            \
    FILE(core_ptx_base, "core/ptx_base.cuh", "core/ptx_base.cuh")                                                      \
    FILE(core_ptx_mma, "core/ptx_mma.cuh", "core/ptx_mma.cuh")                                                         \
    FILE(core_ptx_sm90, "core/ptx_sm90.cuh", "core/ptx_sm90.cuh")                                                      \
    FILE(core_reduce, "core/reduce.cuh", "core/reduce.cuh")                                                            \
    FILE(core_stream, "core/stream.cuh", "core/stream.cuh")                                                            \
    FILE(core_types, "core/types.cuh", "core/types.cuh")                                                               \
    FILE(map_block_scales, "map/block_scales.cuh", "map/block_scales.cuh")                                             \
    FILE(map_block_values, "map/block_values.cuh", "map/block_values.cuh")                                             \
    FILE(map_exchange, "map/exchange.cuh", "map/exchange.cuh")                                                         \
    FILE(map_join, "map/join.cuh", "map/join.cuh")                                                                     \
    FILE(map_map, "map/map.cuh", "map/map.cuh")                                                                        \
    FILE(map_map_tiled, "map/map_tiled.cuh", "map/map_tiled.cuh")                                                      \
    FILE(map_move, "map/move.cuh", "map/move.cuh")                                                                     \
    FILE(map_rng, "map/rng.cuh", "map/rng.cuh")                                                                        \
    FILE(map_scales, "map/scales.cuh", "map/scales.cuh")                                                               \
    FILE(map_transpose, "map/transpose.cuh", "map/transpose.cuh")                                                      \
    FILE(product_combine_partials, "product/combine_partials.cuh", "product/combine_partials.cuh")                     \
    FILE(product_combine_splits, "product/combine_splits.cuh", "product/combine_splits.cuh")                           \
    FILE(product_depthwise_depthwise, "product/depthwise/depthwise.cuh", "product/depthwise/depthwise.cuh")            \
    FILE(product_depthwise_depthwise_mma, "product/depthwise/depthwise_mma.cuh",                                       \
         "product/depthwise/depthwise_mma.cuh")                                                                        \
    FILE(product_depthwise_depthwise_wgrad, "product/depthwise/depthwise_wgrad.cuh",                                   \
         "product/depthwise/depthwise_wgrad.cuh")                                                                      \
    FILE(product_depthwise_lattice, "product/depthwise/lattice.cuh", "product/depthwise/lattice.cuh")                  \
    FILE(product_grouped_grouped, "product/grouped/grouped.cuh", "product/grouped/grouped.cuh")                        \
    FILE(product_grouped_grouped_sm90, "product/grouped/grouped_sm90.cuh", "product/grouped/grouped_sm90.cuh")         \
    FILE(product_grouped_groups, "product/grouped/groups.cuh", "product/grouped/groups.cuh")                           \
    FILE(product_grouped_tile_list, "product/grouped/tile_list.cuh", "product/grouped/tile_list.cuh")                  \
    FILE(product_hopper_auxiliary_load, "product/hopper/auxiliary_load.cuh", "product/hopper/auxiliary_load.cuh")      \
    FILE(product_hopper_coordinates, "product/hopper/coordinates.cuh", "product/hopper/coordinates.cuh")               \
    FILE(product_hopper_epilogue, "product/hopper/epilogue.cuh", "product/hopper/epilogue.cuh")                        \
    FILE(product_hopper_epilogue_direct, "product/hopper/epilogue_direct.cuh", "product/hopper/epilogue_direct.cuh")   \
    FILE(product_hopper_epilogue_staged, "product/hopper/epilogue_staged.cuh", "product/hopper/epilogue_staged.cuh")   \
    FILE(product_hopper_main_loop, "product/hopper/main_loop.cuh", "product/hopper/main_loop.cuh")                     \
    FILE(product_hopper_main_loop_prologue, "product/hopper/main_loop_prologue.cuh",                                   \
         "product/hopper/main_loop_prologue.cuh")                                                                      \
    FILE(product_hopper_main_loop_promoted, "product/hopper/main_loop_promoted.cuh",                                   \
         "product/hopper/main_loop_promoted.cuh")                                                                      \
    FILE(product_hopper_overrides, "product/hopper/overrides.cuh", "product/hopper/overrides.cuh")                     \
    FILE(product_hopper_patch_epilogue, "product/hopper/patch_epilogue.cuh", "product/hopper/patch_epilogue.cuh")      \
    FILE(product_hopper_patch_main_loop, "product/hopper/patch_main_loop.cuh", "product/hopper/patch_main_loop.cuh")   \
    FILE(product_hopper_patch_memory, "product/hopper/patch_memory.cuh", "product/hopper/patch_memory.cuh")            \
    FILE(product_hopper_patch_producer, "product/hopper/patch_producer.cuh", "product/hopper/patch_producer.cuh")      \
    FILE(product_hopper_patch_reductions, "product/hopper/patch_reductions.cuh",                                       \
         "product/hopper/patch_reductions.cuh")                                                                        \
    FILE(product_hopper_patch_scheduler, "product/hopper/patch_scheduler.cuh", "product/hopper/patch_scheduler.cuh")   \
    FILE(product_hopper_patch_sm90, "product/hopper/patch_sm90.cuh", "product/hopper/patch_sm90.cuh")                  \
    FILE(product_hopper_patch_wgrad_sm90, "product/hopper/patch_wgrad_sm90.cuh",                                       \
         "product/hopper/patch_wgrad_sm90.cuh")                                                                        \
    FILE(product_hopper_patch_store, "product/hopper/patch_store.cuh", "product/hopper/patch_store.cuh")               \
    FILE(product_hopper_pipeline, "product/hopper/pipeline.cuh", "product/hopper/pipeline.cuh")                        \
    FILE(product_hopper_pipeline_cursor, "product/hopper/pipeline_cursor.cuh", "product/hopper/pipeline_cursor.cuh")   \
    FILE(product_hopper_producer, "product/hopper/producer.cuh", "product/hopper/producer.cuh")                        \
    FILE(product_hopper_product_cluster_split_promoted_sm90, "product/hopper/product_cluster_split_promoted_sm90.cuh", \
         "product/hopper/product_cluster_split_promoted_sm90.cuh")                                                     \
    FILE(product_hopper_product_cluster_split_sm90, "product/hopper/product_cluster_split_sm90.cuh",                   \
         "product/hopper/product_cluster_split_sm90.cuh")                                                              \
    FILE(product_hopper_product_pingpong_sm90, "product/hopper/product_pingpong_sm90.cuh",                             \
         "product/hopper/product_pingpong_sm90.cuh")                                                                   \
    FILE(product_hopper_product_prologue_sm90, "product/hopper/product_prologue_sm90.cuh",                             \
         "product/hopper/product_prologue_sm90.cuh")                                                                   \
    FILE(product_hopper_product_promoted_sm90, "product/hopper/product_promoted_sm90.cuh",                             \
         "product/hopper/product_promoted_sm90.cuh")                                                                   \
    FILE(product_hopper_product_sm90, "product/hopper/product_sm90.cuh", "product/hopper/product_sm90.cuh")            \
    FILE(product_hopper_reductions, "product/hopper/reductions.cuh", "product/hopper/reductions.cuh")                  \
    FILE(product_hopper_reductions_staged, "product/hopper/reductions_staged.cuh",                                     \
         "product/hopper/reductions_staged.cuh")                                                                       \
    FILE(product_hopper_roles, "product/hopper/roles.cuh", "product/hopper/roles.cuh")                                 \
    FILE(product_hopper_schedule_cluster_split, "product/hopper/schedule_cluster_split.cuh",                           \
         "product/hopper/schedule_cluster_split.cuh")                                                                  \
    FILE(product_hopper_schedule_cooperative, "product/hopper/schedule_cooperative.cuh",                               \
         "product/hopper/schedule_cooperative.cuh")                                                                    \
    FILE(product_hopper_schedule_pingpong, "product/hopper/schedule_pingpong.cuh",                                     \
         "product/hopper/schedule_pingpong.cuh")                                                                       \
    FILE(product_hopper_tile_scheduler, "product/hopper/tile_scheduler.cuh", "product/hopper/tile_scheduler.cuh")      \
    FILE(product_portable_direct, "product/portable_direct.cuh", "product/portable_direct.cuh")                        \
    FILE(product_portable_fma, "product/portable_fma.cuh", "product/portable_fma.cuh")                                 \
    FILE(product_portable_mma, "product/portable_mma.cuh", "product/portable_mma.cuh")                                 \
    FILE(product_staging, "product/staging.cuh", "product/staging.cuh")                                                \
    FILE(product_stem_pixels, "product/stem/pixels.cuh", "product/stem/pixels.cuh")                                    \
    FILE(product_stem_stem, "product/stem/stem.cuh", "product/stem/stem.cuh")                                          \
    FILE(product_stem_stem_dgrad, "product/stem/stem_dgrad.cuh", "product/stem/stem_dgrad.cuh")                        \
    FILE(product_stem_stem_sm90, "product/stem/stem_sm90.cuh", "product/stem/stem_sm90.cuh")                           \
    FILE(product_stem_stem_wgrad, "product/stem/stem_wgrad.cuh", "product/stem/stem_wgrad.cuh")                        \
    FILE(product_tiles, "product/tiles.cuh", "product/tiles.cuh")                                                      \
    FILE(product_weight_only_few_bits, "product/weight_only/few_bits.cuh", "product/weight_only/few_bits.cuh")         \
    FILE(product_weight_only_repack, "product/weight_only/repack.cuh", "product/weight_only/repack.cuh")               \
    FILE(product_weight_only_weight_only, "product/weight_only/weight_only.cuh",                                       \
         "product/weight_only/weight_only.cuh")                                                                        \
    FILE(product_weight_only_weight_only_sm90, "product/weight_only/weight_only_sm90.cuh",                             \
         "product/weight_only/weight_only_sm90.cuh")                                                                   \
    FILE(rows_channels, "rows/channels.cuh", "rows/channels.cuh")                                                      \
    FILE(rows_column_sums, "rows/column_sums.cuh", "rows/column_sums.cuh")                                             \
    FILE(rows_columns, "rows/columns.cuh", "rows/columns.cuh")                                                         \
    FILE(rows_columns_shared, "rows/columns_shared.cuh", "rows/columns_shared.cuh")                                    \
    FILE(rows_elements, "rows/elements.cuh", "rows/elements.cuh")                                                      \
    FILE(rows_join_splits, "rows/join_splits.cuh", "rows/join_splits.cuh")                                             \
    FILE(rows_own_tiles, "rows/own_tiles.cuh", "rows/own_tiles.cuh")                                                   \
    FILE(rows_passes, "rows/passes.cuh", "rows/passes.cuh")                                                            \
    FILE(rows_persistent, "rows/persistent.cuh", "rows/persistent.cuh")                                                \
    FILE(rows_pipelined, "rows/pipelined.cuh", "rows/pipelined.cuh")                                                   \
    FILE(rows_program, "rows/program.cuh", "rows/program.cuh")                                                         \
    FILE(rows_reduce_columns, "rows/reduce_columns.cuh", "rows/reduce_columns.cuh")                                    \
    FILE(rows_reduce_rows, "rows/reduce_rows.cuh", "rows/reduce_rows.cuh")                                             \
    FILE(rows_registers, "rows/registers.cuh", "rows/registers.cuh")                                                   \
    FILE(rows_resident, "rows/resident.cuh", "rows/resident.cuh")                                                      \
    FILE(rows_row_operands, "rows/row_operands.cuh", "rows/row_operands.cuh")                                          \
    FILE(rows_splits, "rows/splits.cuh", "rows/splits.cuh")                                                            \
    FILE(rows_staged, "rows/staged.cuh", "rows/staged.cuh")                                                            \
    FILE(rows_streamed, "rows/streamed.cuh", "rows/streamed.cuh")                                                      \
    FILE(rows_strip, "rows/strip.cuh", "rows/strip.cuh")                                                               \
    FILE(rows_interleaved, "rows/interleaved.cuh", "rows/interleaved.cuh")                                             \
    FILE(window_box, "window/box.cuh", "window/box.cuh")                                                               \
    FILE(window_geometry, "window/geometry.cuh", "window/geometry.cuh")                                                \
    FILE(window_planes, "window/planes.cuh", "window/planes.cuh")                                                      \
    FILE(window_pool, "window/pool.cuh", "window/pool.cuh")                                                            \
    FILE(window_pool_boxes, "window/pool_boxes.cuh", "window/pool_boxes.cuh")                                          \
    FILE(window_pool_boxes_bwd, "window/pool_boxes_bwd.cuh", "window/pool_boxes_bwd.cuh")                              \
    FILE(window_pool_bwd, "window/pool_bwd.cuh", "window/pool_bwd.cuh")                                                \
    FILE(window_pool_common, "window/pool_common.cuh", "window/pool_common.cuh")                                       \
    FILE(window_pool_gradient, "window/pool_gradient.cuh", "window/pool_gradient.cuh")                                 \
    FILE(window_pool_planes, "window/pool_planes.cuh", "window/pool_planes.cuh")                                       \
    FILE(window_pool_planes_bwd, "window/pool_planes_bwd.cuh", "window/pool_planes_bwd.cuh")                           \
    FILE(window_pool_results, "window/pool_results.cuh", "window/pool_results.cuh")                                    \
    FILE(window_pool_team, "window/pool_team.cuh", "window/pool_team.cuh")                                             \
    FILE(window_pool_unaligned, "window/pool_unaligned.cuh", "window/pool_unaligned.cuh")                              \
    FILE(window_pool_whole, "window/pool_whole.cuh", "window/pool_whole.cuh")                                          \
    FILE(window_segment, "window/segment.cuh", "window/segment.cuh")                                                   \
    FILE(window_window, "window/window.cuh", "window/window.cuh")                                                      \
    FILE(window_window_bwd, "window/window_bwd.cuh", "window/window_bwd.cuh")

/* .incbin copies the bytes as they are; the byte behind them ends the text. Hidden, so that the library exports none of
   them. Paths are found from engines/cuda, by the assembler's -I. */
#define EMBED(symbol, path, name)                                                                                      \
    __asm__(".pushsection .rodata\n.global weft_kernel_" #symbol "\n.hidden weft_kernel_" #symbol                      \
            "\nweft_kernel_" #symbol ":\n.incbin \"" path "\"\n.byte 0\n.popsection\n");                               \
    extern const char weft_kernel_##symbol[];
FILES(EMBED)

/* The list's order is that of hashes and of what is shown, whatever order includes have. */
#define ROW(symbol, path, name) {name, weft_kernel_##symbol},
static const struct program_header files[] = {FILES(ROW)};

_Static_assert(sizeof files / sizeof *files <= DEVICE_FILES_MAX, "sets of files have a bit for each");

const struct program_header *device_files(int *count) {
    *count = sizeof files / sizeof *files;
    return files;
}
