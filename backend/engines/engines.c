/* SPDX-License-Identifier: Apache-2.0 */
/* The list of engines, best first, and the families of each, best first. This is the only file that names the families
   of both device kinds. An engine's position in `engines` is its global index. */
#include "engines/cpu/families.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/families.h"
#include "engines/engine.h"

/* Families start regions in this order: attention and products, special before general, come first, so that simpler
   families do not claim operations that could be fused with them. Ties go to the earlier family. */
static const struct family *const cuda_families[] = {&cuda_attention_pattern,
                                                     &cuda_attention_hopper,
                                                     &cuda_attention_decode,
                                                     &cuda_attention,
                                                     &cuda_weight_only_sm90,
                                                     &cuda_weight_only,
                                                     &cuda_stem_sm90,
                                                     &cuda_stem,
                                                     &cuda_depthwise,
                                                     &cuda_batched,
                                                     &cuda_patch_sm90,
                                                     &cuda_patch_wgrad_sm90,
                                                     &cuda_hopper,
                                                     &cuda_packed,
                                                     &cuda_contraction,
                                                     &cuda_grouped_sm90,
                                                     &cuda_grouped,
                                                     &cuda_channels,
                                                     &cuda_rows,
                                                     &cuda_recurrent,
                                                     &cuda_window,
                                                     &cuda_causal,
                                                     &cuda_scan,
                                                     &cuda_top_k,
                                                     &cuda_grid,
                                                     &cuda_affine_grid,
                                                     &cuda_ctc,
                                                     &cuda_gather,
                                                     &cuda_rope,
                                                     &cuda_map,
                                                     &cuda_move,
                                                     &cuda_paged_load,
                                                     &cuda_rng,
                                                     &cuda_block_scale,
                                                     &cuda_staged,
                                                     NULL};
/* Reported by the engine descriptor: products may use tensor cores, and the first plan of a graph compiles kernels. */
static const weftBackendNumericalNote_t cuda_numerical_notes[] = {WEFT_NUMERICAL_NOTE_TENSOR_CORE};
static const weftBackendBehaviorNote_t cuda_behavior_notes[] = {WEFT_BEHAVIOR_NOTE_RUNTIME_COMPILATION,
                                                                WEFT_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API};

/* Fields shared by the GPU engines, which are one list of families and differ in what their requests allow. */
#define OF_CUDA                                                                                                        \
    .device = WEFT_DEVICE_CUDA, .families = cuda_families, .behavior_notes = cuda_behavior_notes,                      \
    .behavior_note_count = 2, .stores_narrow = true, .parts_batch_norms = true, .assumes_numbers = true,               \
    .compile = cuda_compile, .keeps = cuda_keeps, .code = cuda_code, .show = cuda_show, .load = cuda_load,             \
    .run = cuda_run, .release = cuda_release

static const struct engine cuda_engine = {
    .name = "cuda",
    .doc = "kernels generated from the graph and compiled for the GPU, on an NVIDIA GPU; runs every graph",
    .numerical_notes = cuda_numerical_notes,
    .numerical_note_count = 1,
    .is_fallback = true,
    OF_CUDA,
};

/* TF32 has 8 exponent bits and 10 mantissa bits: the range of float, the precision of half. */
static const weftBackendNumericalNote_t cuda_tf32_numerical_notes[] = {WEFT_NUMERICAL_NOTE_TENSOR_CORE,
                                                                       WEFT_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS};
static const struct engine cuda_tf32_engine = {
    .name = "cuda.tf32",
    .doc = "like cuda, with float products rounded to TF32 (10 mantissa bits) on tensor cores",
    .allow = RELAX_TF32,
    .numerical_notes = cuda_tf32_numerical_notes,
    .numerical_note_count = 2,
    OF_CUDA,
};

/* Atomic additions: the order of a sum depends on which block finishes first. */
static const weftBackendNumericalNote_t cuda_unordered_numerical_notes[] = {WEFT_NUMERICAL_NOTE_TENSOR_CORE,
                                                                            WEFT_NUMERICAL_NOTE_NONDETERMINISTIC};
static const struct engine cuda_unordered_engine = {
    .name = "cuda.unordered",
    .doc = "like cuda, with sums that blocks add to in any order: two runs may differ by rounding",
    .allow = RELAX_ORDER,
    .numerical_notes = cuda_unordered_numerical_notes,
    .numerical_note_count = 2,
    OF_CUDA,
};

/* cpu_reference ends the list of every CPU engine: it accepts any single operation, at a predicted time that other
   families beat. */
static const struct family *const cpu_fast_families[] = {
    &cpu_contraction, &cpu_grouped,   &cpu_attention, &cpu_rows,        &cpu_map,       &cpu_move,  &cpu_pooling,
    &cpu_causal,      &cpu_recurrent, &cpu_element,   &cpu_block_scale, &cpu_scan,      &cpu_top_k, &cpu_grid,
    &cpu_affine_grid, &cpu_ctc,       &cpu_gather,    &cpu_rope,        &cpu_reference, NULL};
static const struct engine cpu_fast_engine = {
    .name = "cpu.fast",
    .doc = "fused operations on packed and vectorised kernels, on all cores; all others like cpu.reference",
    .device = WEFT_DEVICE_CPU,
    .families = cpu_fast_families,
    .takes_any_alignment = true,
};

/* The oracle of the tests: no fusion, no threads, no vector code. */
static const struct family *const cpu_reference_families[] = {&cpu_reference, NULL};
static const struct engine cpu_reference_engine = {
    .name = "cpu.reference",
    .doc = "one operation at a time by its definition, in double precision; runs every graph",
    .device = WEFT_DEVICE_CPU,
    .families = cpu_reference_families,
    .takes_any_alignment = true,
    .is_fallback = true,
};

/* GPU engines come first: the default device is a GPU if one exists, and plans use only engines of their own device
   kind. */
const struct engine *const engines[] = {&cuda_engine, &cuda_tf32_engine, &cuda_unordered_engine, &cpu_fast_engine,
                                        &cpu_reference_engine};
const int engine_count = sizeof engines / sizeof *engines;
