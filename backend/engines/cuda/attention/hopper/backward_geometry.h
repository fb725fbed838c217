/* SPDX-License-Identifier: Apache-2.0 */
/* The variants of backward_sm90 and their shared memory. The host chooses a variant and emits it as the constant
   CONFIG. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_HOPPER_BACKWARD_GEOMETRY_H
#define WEFT_ENGINES_CUDA_ATTENTION_HOPPER_BACKWARD_GEOMETRY_H

#include "engines/cuda/attention/hopper/hopper_geometry.h"

/* Members of struct backward_config, each of type int: flags, and then sizes. The header of backward_sm90.cuh describes
   them. */
#define BACKWARD_CONFIG(MEMBER)                                                                                        \
    MEMBER(kv_resident)                                                                                                \
    MEMBER(has_dqk)                                                                                                    \
    MEMBER(has_dv)                                                                                                     \
    MEMBER(kv_heads_differ)                                                                                            \
    MEMBER(reduces_dq)                                                                                                 \
    MEMBER(stores_dq)                                                                                                  \
    MEMBER(has_fp8_mma)                                                                                                \
    MEMBER(loads_twice)                                                                                                \
    MEMBER(has_tma_bias)                                                                                               \
    MEMBER(has_derivatives)                                                                                            \
    MEMBER(has_factors)                                                                                                \
    MEMBER(is_soft_cap)                                                                                                \
    MEMBER(has_parts)                                                                                                  \
    MEMBER(skips_unused_tiles)                                                                                         \
    MEMBER(head)                                                                                                       \
    MEMBER(value_head)                                                                                                 \
    MEMBER(block_streamed)                                                                                             \
    MEMBER(block_q)                                                                                                    \
    MEMBER(stages)                                                                                                     \
    MEMBER(vdo_stages)                                                                                                 \
    MEMBER(consumer_registers)                                                                                         \
    MEMBER(producer_registers)

struct backward_config {
#define MEMBER(name) int name;
    BACKWARD_CONFIG(MEMBER)
#undef MEMBER
};

enum {
    BLOCK_RESIDENT = 128, /* resident rows of a CTA */
    DS_STAGES = 2,        /* dS buffers, of different steps */
    PART_ROWS = 64,       /* rows and columns of a part of dQ */
    PART_BYTES = PART_ROWS * PART_ROWS * 4,
};

/* Sizes in bytes, and offsets of what is stored once or in stages. */
struct backward_memory {
    unsigned resident_panel, streamed_panel; /* 64 columns of the resident rows, and of the streamed rows */
    unsigned resident_qk_bytes, resident_vdo_bytes, kt_bytes;
    unsigned s_operand_bytes, dqk_operand_bytes, qk_bytes;  /* qk of a stage: the operands of S, and of dQ or dK */
    unsigned dp_operand_bytes, dv_operand_bytes, vdo_bytes; /* vdo of a stage: the operands of dP and dV */
    unsigned statistics_bytes, ds_bytes, bias_bytes;        /* bytes per stage, step and step */
    int parts_staged;                                       /* staging buffers of parts of dQ */
    unsigned resident_qk, resident_vdo, kt, streamed_qk, streamed_vdo, ds, dq, bias, statistics;
    unsigned barriers, barrier_count;
    unsigned bytes; /* bytes per CTA */
};

/* An FP8 panel has 128 columns, which are all columns of S and dP. */
GEOMETRY struct backward_memory backward_memory_of(struct backward_config c) {
    struct backward_memory m = {0};
    unsigned panels = c.head / 64, value_panels = c.value_head / 64, streamed_panels = c.block_streamed / 64;
    unsigned s_panels = c.has_fp8_mma ? 1 : panels, dp_panels = c.has_fp8_mma ? 1 : value_panels;
    m.resident_panel = BLOCK_RESIDENT * PANEL_ROW;
    m.streamed_panel = c.block_streamed * PANEL_ROW;
    m.resident_qk_bytes = s_panels * m.resident_panel;
    m.resident_vdo_bytes = c.has_dqk ? dp_panels * m.resident_panel : 0;
    m.kt_bytes = c.has_fp8_mma ? BLOCK_RESIDENT / FP8_TILE * panels * FP8_TILE_BYTES : 0;
    m.s_operand_bytes = s_panels * m.streamed_panel;
    m.dqk_operand_bytes = c.loads_twice ? panels * m.streamed_panel : 0;
    m.qk_bytes = m.s_operand_bytes + m.dqk_operand_bytes;
    m.dp_operand_bytes = dp_panels * m.streamed_panel;
    m.dv_operand_bytes = c.has_fp8_mma ? value_panels * m.streamed_panel : 0;
    m.vdo_bytes = m.dp_operand_bytes + m.dv_operand_bytes;
    m.statistics_bytes = c.kv_resident ? 2 * c.block_streamed * 4 : 0;
    m.ds_bytes = c.has_fp8_mma ? m.streamed_panel : streamed_panels * m.resident_panel;
    m.parts_staged = streamed_panels > 1 || c.has_tma_bias || c.has_fp8_mma ? 1 : 2;
    m.bias_bytes = c.has_tma_bias ? 2 * m.streamed_panel : 0;

    m.resident_vdo = m.resident_qk + m.resident_qk_bytes;
    m.kt = m.resident_vdo + m.resident_vdo_bytes;
    m.streamed_qk = m.kt + m.kt_bytes;
    m.streamed_vdo = m.streamed_qk + c.stages * m.qk_bytes;
    m.ds = m.streamed_vdo + c.vdo_stages * m.vdo_bytes;
    m.dq = m.ds + DS_STAGES * m.ds_bytes;
    m.bias = c.reduces_dq ? m.dq + m.parts_staged * PART_BYTES : m.ds;
    m.statistics = m.bias + m.bias_bytes;
    m.barriers = m.statistics + c.stages * m.statistics_bytes;
    m.barrier_count =
        3 + 2 * c.stages + 2 * c.vdo_stages + 2 * DS_STAGES + (c.has_tma_bias ? 2 : 0) + (c.has_fp8_mma ? 1 : 0);
    m.bytes = m.barriers + m.barrier_count * BARRIER_BYTES;
    return m;
}

#endif
