/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of forward_sm90. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_HOPPER_FORWARD_GEOMETRY_H
#define WEFT_ENGINES_CUDA_ATTENTION_HOPPER_FORWARD_GEOMETRY_H

#include "engines/cuda/attention/hopper/hopper_geometry.h"

enum {
    GROUP_Q = 64,                /* queries of a consumer warpgroup */
    WARP_PANEL = 16 * PANEL_ROW, /* bytes of a panel of a warp's queries */
    TILES_IN_FLIGHT = 2,         /* tiles whose coordinates the producer has sent */
    TILE_BYTES = 32,             /* coordinates of a tile */
    SPILLED_BYTES = 2,           /* per element of a spilled FP8 accumulator */
};

/* The constants of the kernel that determine its memory, in lower case. */
struct forward_shape {
    int is_fp8, head_qk, head_v, ones, block_k, groups;
    int stages, q_stages, o_stages, bias_stages;
};

/* Sizes in bytes, and offsets of what is stored once, in stages, or for each consumer. */
struct forward_memory {
    unsigned q_panel, k_panel, v_panel, bias_panel;
    unsigned q_bytes, k_bytes, v_bytes; /* bytes per stage */
    unsigned vt_bytes;                  /* FP8: V^T of 64 keys, and the ones below it */
    unsigned used_bytes;                /* FP8: number of keys in use of a stage's V */
    unsigned bias_bytes;                /* bytes per stage and consumer */
    unsigned k, o, v, means, bias, tiles, used, barriers, bias_barriers; /* Q is at 0 */
    unsigned kv_barriers;                                                /* barriers per stage of K and V */
    unsigned bytes;                                                      /* bytes per CTA */
};

/* Q of all consumers, K, O of 16 queries per warp, V, spilled FP8 sums, bias boxes, tiles, barriers. */
GEOMETRY struct forward_memory forward_memory_of(struct forward_shape s) {
    struct forward_memory m = {0};
    unsigned block_q = GROUP_Q * s.groups, element = s.is_fp8 ? 1 : 2;
    unsigned qk_panels = (s.head_qk * element + PANEL_ROW - 1) / PANEL_ROW, v_panels = (s.head_v + 63) / 64;
    m.q_panel = block_q * PANEL_ROW;
    m.k_panel = s.block_k * PANEL_ROW;
    m.v_panel = s.block_k * 64 * element;
    m.bias_panel = GROUP_Q * PANEL_ROW;
    m.q_bytes = qk_panels * m.q_panel;
    m.k_bytes = qk_panels * m.k_panel;
    m.vt_bytes = v_panels * FP8_TILE_BYTES + s.ones * FP8_TILE;
    m.v_bytes = s.is_fp8 ? s.block_k / FP8_TILE * m.vt_bytes : v_panels * m.v_panel;
    m.used_bytes = s.is_fp8 ? 16 : 0;
    m.bias_bytes = s.block_k / 64 * m.bias_panel;
    m.kv_barriers = s.is_fp8 ? 5 : 4;

    m.k = s.q_stages * m.q_bytes;
    m.o = m.k + s.stages * m.k_bytes;
    m.v = m.o + 4 * s.groups * s.o_stages * WARP_PANEL;
    m.means = m.v + s.stages * m.v_bytes;
    m.bias = m.means + (s.is_fp8 ? block_q * s.head_v * SPILLED_BYTES : 0);
    m.tiles = m.bias + s.bias_stages * s.groups * m.bias_bytes;
    m.used = m.tiles + TILES_IN_FLIGHT * s.groups * TILE_BYTES;
    m.barriers = m.used + s.stages * m.used_bytes;
    m.bias_barriers = m.barriers + (m.kv_barriers * s.stages + 2 * s.q_stages * s.groups) * BARRIER_BYTES;
    m.bytes = m.bias_barriers + 2 * s.bias_stages * s.groups * BARRIER_BYTES;
    return m;
}

#endif
