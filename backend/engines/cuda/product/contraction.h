/* SPDX-License-Identifier: Apache-2.0 */
/* The contraction family: C[z,i,j] = epilogue(sum over k of A[z,i,k] * B[z,k,j]) for a matmul or any of the three
   convolutions, and the pointwise operations behind it. Each of the four indices is a number in mixed radix: its modes
   say where an element lies in A, in B and in the result, and, for an image, which coordinates it has. One set of
   kernels serves all four operations; what differs is printed from the modes. */
#ifndef WEFT_ENGINES_CUDA_CONTRACTION_H
#define WEFT_ENGINES_CUDA_CONTRACTION_H

#include "engines/cuda/core/formula.h"
#include "engines/cuda/core/kernel.h"
#include "graph/ops/block_scale.h"

enum index { BATCH, ROW, COLUMN, K, INDICES };
enum { OPERAND_A, OPERAND_B, OPERANDS };
enum { COORDINATES = 3, MODES_MAX = 16, EPILOGUE_OPERANDS_MAX = 32, REDUCTIONS_MAX = 4, NO_DIM = -1, NO_PHASE = -1 };
enum { BEFORE_MAX = 16, NOTHING_BEFORE = -1 }; /* pointwise operations before a product */

struct mode {
    int64_t extent;
    int64_t stride[OPERANDS];            /* elements from one value of the mode to the next */
    int64_t step[OPERANDS][COORDINATES]; /* what it adds to the coordinates */
    int dim;                             /* of the result; NO_DIM in K */
    int64_t dim_step;                    /* what it adds to the coordinate in that dimension */
    int phase;                           /* BATCH: is the phase of this number; K: its taps; else NO_PHASE */
};

/* An index: modes, slowest first. Without modes it counts to 1. */
struct modes {
    int count;
    struct mode at[MODES_MAX];
};

/* A or B. The element of all modes 0 lies at `first`; where a coordinate is outside 0 .. size - 1, the element counts
   as the padding value and is not read. Offsets are in elements from the tensor's address, which padding in front makes
   negative: `first` alone need not lie in the tensor. */
struct product_operand {
    int value;
    const struct tensor *tensor;
    const struct block_scale_dequantize_op *scaling; /* multiplies its numbers by scales of blocks; NULL: none does */
    int prepared; /* the value that pointwise operations before the product make of it; NOTHING_BEFORE: none do */
    int64_t first;
    bool is_checked[COORDINATES];
    int64_t start[COORDINATES], size[COORDINATES];
    /* How it is read: neighbours per access, and whether these lie along K or along the operand's other index. */
    int run;
    bool is_k_major;
};

/* A spatial dimension of a data gradient whose stride is above 1: elements of dx at distance `stride` see dy through
   the same taps, so each of the `stride` phases is a sum of its own over every tap_step-th tap. */
struct phase {
    int coordinate;
    int64_t taps, tap_step, stride, dilation, pre;
    int64_t a_stride, b_stride; /* elements from one position in dy, one tap in w, to the next */
};

/* How products are made and summed. */
enum arithmetic { MMA_F16, MMA_BF16, MMA_INT8, MMA_TF32, FMA_FLOAT, FMA_DOUBLE, FMA_INT32, FMA_INT64 };

/* What the epilogue does with an operand. */
enum epilogue_role {
    EPILOGUE_LOAD,    /* reads a tensor beside the sums */
    EPILOGUE_STORE,   /* writes a tensor */
    EPILOGUE_INDEX,   /* a coordinate of the element, as GEN_INDEX asks; no memory */
    EPILOGUE_LIMIT,   /* writes nothing from this coordinate on; no memory */
    EPILOGUE_OLD,     /* reads the result itself, to which beta is applied */
    EPILOGUE_REDUCED, /* leaves parts of a reduction, which the kernel that ends reductions writes */
};

/* `strides` are by index (batch, row, column) and by the epilogue's own modes, in elements. */
struct epilogue_operand {
    enum epilogue_role role;
    int value;
    weftDataType_t type;
    int64_t strides[K][MODES_MAX];
    int64_t bound;     /* LIMIT: the coordinate stays below it */
    bool is_auxiliary; /* LOAD, OLD: the kernel fills it in; fetch() leaves it out */
};

/* What a reduction keeps, over the batch or in each entry of it. */
enum span { SPAN_COLUMN, SPAN_ROW, SPAN_ALL, SPANS };

struct reduced_span {
    int count;
    bool keeps_batch;
    int64_t elements; /* in each */
};

/* A reduction behind the product: its results are numbers `first` .. of their span. */
struct fused_reduction {
    const struct node *node;
    enum span span;
    int first;
    int mode; /* weftReduceTensorOp_t of a reduction */
};

/* What follows the sum: the indices of the result with modes of their own, and operands over them. */
struct epilogue {
    int mode_count[K];
    int64_t extents[K][MODES_MAX];
    int count;
    struct epilogue_operand at[EPILOGUE_OPERANDS_MAX];
    enum index lead; /* whose last mode runs over neighbours in the result */
    int run;
    int reduction_count;
    bool reduces_stored; /* kernels reduce the one result as they store it: evaluate() leaves that out */
    struct fused_reduction reductions[REDUCTIONS_MAX];
    struct reduced_span spans[SPANS];
};

/* In elements of the result. A block has warps_m * warps_n warps, or a thread for each thread_m x thread_n results. */
struct tile {
    int rows, columns;
    int warps_m, warps_n;   /* of MMA kernels */
    int thread_m, thread_n; /* of FMA kernels */
    double efficiency;
};

/* From the top down to `limited_dim`: what contraction_find and contraction_shape read from the region. Below: what
   contraction_plan chooses from a device and knobs. */
struct contraction {
    const struct region *region;
    const struct node *node;
    int before_count;
    const struct node *before[BEFORE_MAX]; /* pointwise, last first; they read one tensor of an operand's dims */
    bool narrows;                          /* floats may lose bits on tensor cores */
    int result;
    double alpha, beta, fill;
    const struct tensor *used[3]; /* overrides of rows, columns, k; NULL: all */
    struct product_operand operand[OPERANDS];
    struct modes modes[INDICES];
    int phase_count;
    struct phase phases[COORDINATES];
    double k_count; /* products per element, for predictions */
    bool has_limit; /* a mode counts further than this dimension of the result */
    int limited_dim;

    enum arithmetic arithmetic;
    struct epilogue epilogue;
    bool is_direct; /* one thread per run of results instead of tiles */
    bool is_small;  /* all indices fit in 31 bits */
    bool has_k16;   /* mma.sync takes 16 halves at a time, from sm_80 on; 8 before */
    const struct tile *tile;
    int splits; /* of K; sums of parts meet in the workspace */
    int64_t steps_per_split;
    double seconds;
};

static inline weftDataType_t operand_type(const struct contraction *c, int operand) {
    return (weftDataType_t)c->operand[operand].tensor->type;
}

/* ---- find.c: the product of a region, and what goes around it ---- */

/* The one product of a region, with its shape, and pointwise operations behind it. */
weftStatus_t contraction_find(struct contraction *c, const struct region *region);
/* The same with reductions behind it, too; an operand may be scaled by blocks or made by pointwise operations, and is
   then the tensor that they read. */
weftStatus_t contraction_find_prepared(struct contraction *c, const struct region *region);
/* Whether a node of the region follows the product, and so is neither it nor before it. */
bool contraction_is_behind(const struct contraction *c, const struct node *node);
static inline bool contraction_has_overrides(const struct contraction *c) {
    return c->used[0] || c->used[1] || c->used[2];
}
/* NVIDIA_TF32_OVERRIDE=0 is how users forbid to narrow floats in every library. */
weftStatus_t contraction_may_narrow(void);
/* Whether an operation multiplies floats, or halves by bfloat16, which floats hold: what families for tf32 narrow. */
bool contraction_narrows(const struct graph *graph, int node);
/* A run is read before it is written, by one thread; what the product and the operations before it read may be read by
   all. */
bool contraction_may_alias(const struct step *step, int in, int out);

/* ---- tiles.c: the text that families of products share ---- */

/* What every kernel begins with. */
void contraction_emit_begin(struct kernel_source *source, const struct contraction *c);
/* The type that numbers tiles or results, of which `most` exist. */
void contraction_emit_position(struct kernel_source *source, int64_t most);
/* Begins the build of a step: its state, and its first kernel; NULL, with a sentence, where there is nothing to
   compute. */
weftStatus_t contraction_add_kernel(struct cuda_kernel **kernel, struct step *step, const struct contraction *c,
                                    struct arena *arena);
/* A grid along x alone. */
void contraction_set_launch(struct cuda_kernel *kernel, int64_t blocks, int64_t threads, int64_t shared_bytes);
/* Blocks for so many pieces of work: each takes another one until none is left. */
uint32_t contraction_grid(int64_t pieces);
/* A kernel of tiles: what comes before the offsets of its operands, and the end of its printing. */
void contraction_emit_tile(struct kernel_source *source, const struct contraction *c);
weftStatus_t contraction_end_tiles(struct kernel_source *source, struct cuda_kernel *kernel,
                                   const struct contraction *c, const int64_t tiles[3], struct arena *arena);
/* Where the sum goes: to epilogue(), or, split, to the workspace. */
void contraction_emit_epilogue(struct kernel_source *source, const struct contraction *c);
/* Adds the kernel that joins the parts of split sums, and the workspace that they take. */
weftStatus_t contraction_add_combine(struct step *step, const struct contraction *c, struct arena *arena);

/* ---- shape.c: from an operation to modes ---- */

/* The node's modes and operands; NOT_SUPPORTED and a sentence for what kernels cannot index. */
weftStatus_t contraction_shape(struct contraction *c, const struct node *node);
/* A and B change places, and with them rows and columns. Before the plan. */
void contraction_swap(struct contraction *c);
int64_t modes_extent(const struct modes *modes);
int64_t contraction_elements(const struct contraction *c); /* of the result */
/* Makes one mode of neighbours that both operands walk as one. */
void modes_merge(struct modes *modes);
/* Moves rows and columns into the batch, where the direct kernel counts results, in the order that memory asks for. */
void contraction_flatten(struct contraction *c);

/* What follows a convolution's sum in a kernel that finds positions by itself: the modes of the result alone, sums that
   are floats, and the epilogue. Rows are images and positions, columns channels; of the filter gradient, filters, and
   taps and channels. NOT_SUPPORTED, with a sentence, for what cannot follow, and for 2^31 results. */
struct conv_geometry;
weftStatus_t contraction_analyse_result(struct contraction *c, const struct conv_geometry *g);

/* ---- epilogue.c: what follows the sum ---- */

/* Finds operands, merges their modes; NOT_SUPPORTED and a sentence for what cannot follow. */
weftStatus_t epilogue_analyse(struct contraction *c);
/* fetch(p, z, i, j): what is read of memory; evaluate(.., sum, fetched): a run of results; epilogue(.., sum[,
   fetched]): stores it, too. Where there are reductions, exists(p, z, i, j). */
void epilogue_emit(struct kernel_source *source, const struct contraction *c);
/* Instructions for an element of the result beside its conversion, roughly. */
double epilogue_instructions(const struct contraction *c);
/* Registers for the operands of 16 columns of two rows. */
int epilogue_fetched_words(const struct epilogue *epilogue);
/* The one result, if its elements have so many bytes and its rows are whole accesses of 16 bytes, or NULL. */
const struct epilogue_operand *epilogue_find_staged(const struct contraction *c, int bytes);
/* One or two results, if all are such, and how many; else 0. */
int epilogue_find_stored(const struct contraction *c, int bytes, const struct epilogue_operand *stores[2]);
static inline const struct epilogue_operand *epilogue_find_half(const struct contraction *c) {
    return epilogue_find_staged(c, 2);
}
/* Whether operand k lies as store does, so that whatever moves results can move it: 16 bits, in whole accesses of 16
   bytes. */
bool epilogue_lies_alike(const struct contraction *c, int k, const struct epilogue_operand *store);
/* address_of_result(p, z, i, j): the address of an element of store k, nullptr where there is none. After
   epilogue_emit. */
void epilogue_emit_address(struct kernel_source *source, const struct contraction *c, int k);

/* ---- epilogue_offsets.c: where operands lie, for all functions over the same indices ---- */

/* Whether operand k is the same in all rows. Of a result whose phases end at different places, in all phases. */
bool epilogue_is_of_column(const struct epilogue *epilogue, int k);
/* Fields of the arguments: addresses, bounds, what modes are split by and multiplied with. */
void epilogue_emit_arguments(struct kernel_source *source, const struct epilogue *epilogue);
/* The modes f<index><d> of z, i, j. */
void epilogue_emit_modes(struct kernel_source *source, const struct epilogue *epilogue);
/* The statement `out` where a phase has no such element: tests that are the same in all rows, and others. */
void epilogue_emit_limits(struct kernel_source *source, const struct epilogue *epilogue, bool of_column,
                          const char *out);
void epilogue_emit_all_limits(struct kernel_source *source, const struct epilogue *epilogue, const char *out);
/* The sum of modes times strides of operand k. */
void epilogue_emit_offset(struct kernel_source *source, const struct epilogue *epilogue, int k);

/* ---- reductions.c: reductions behind the product ---- */

bool reductions_serve(const struct node *node);
extern const char *const span_names[SPANS];
/* Finds what a reduction keeps, before its operands are the epilogue's; NOT_SUPPORTED and a sentence for what tiles
   cannot. */
weftStatus_t reductions_add(struct contraction *c, const struct node *node);
/* struct column_reductions, row_reductions, whole_reductions: COUNT, none(t) and joined(t, a, b). */
void reductions_emit_kinds(struct kernel_source *source, const struct contraction *c);
/* Of struct results, and how evaluate() fills them: what each result adds to each reduction. */
void reductions_emit_fields(struct kernel_source *source, const struct epilogue *epilogue);
void reductions_emit_elements(struct kernel_source *source, const struct contraction *c);
/* Whether reductions read one value and nothing else; elements_of(p, bits): the same of what was stored in 16 bits. */
bool reductions_read_only_value(const struct contraction *c, int value);
/* Whether they are of columns, and of the one staged result of 16 bits alone. */
bool reductions_are_of_stored(const struct contraction *c);
void reductions_emit_stored(struct kernel_source *source, const struct contraction *c,
                            const struct epilogue_operand *store);
/* Partial sums of reductions lie in the workspace, lines of each span one after another; a line is a part of all totals
   of the span, side by side. Where they are, and how many. */
void reductions_emit_partials(struct kernel_source *source, const struct contraction *c, const int64_t lines[SPANS],
                              enum span span);
/* What combining partial sums takes, with their way to memory. */
double reductions_seconds(const struct contraction *c);
/* The kernels that combine partial sums, one for each span, and the workspace. */
weftStatus_t reductions_build(struct step *step, const struct contraction *c, const int64_t lines[SPANS],
                              struct arena *arena);

/* ---- arithmetic.c ---- */

struct arithmetic_row {
    const char *a_staged, *b_staged; /* names of types in shared memory; NULL: by the operand's type */
    weftDataType_t sum;
    bool is_mma;
    int bytes;   /* of a staged element */
    int block_k; /* elements of k in a step */
};
extern const struct arithmetic_row arithmetic_rows[];
static inline int64_t contraction_sum_bytes(const struct contraction *c) {
    return dtype_bytes(arithmetic_rows[c->arithmetic].sum, 1);
}
/* The type to calculate in, as it was set. */
weftDataType_t contraction_math(const struct node *node);
/* From the operands' types, k and the type to calculate in. */
enum arithmetic contraction_arithmetic(const struct contraction *c, const struct device *device);
/* Operations per second of a multiprocessor at full rate. */
double contraction_rate(enum arithmetic arithmetic, const struct device *device);

/* ---- plan.c: tile and splits ---- */

/* Fills in what no tile changes of a contraction that has its shape: the arithmetic, and what follows the sum. Merges
   modes: whoever wants modes as the operation has them looks before. */
weftStatus_t contraction_analyse(struct contraction *c, const struct device *device);
/* The same and the rest. */
weftStatus_t contraction_plan(struct contraction *c, const struct device *device, const struct knob_choices *knobs);
/* What it takes to move all that an analysed contraction reads and writes. */
double contraction_memory_seconds(const struct contraction *c, const struct device *device);
enum { TILE_ROWS = 7, SPLITS_MAX = 64 }; /* of the table of tiles; of k */

/* ---- emit.c: text and arguments of the kernels ---- */

extern const char index_letters[INDICES + 1]; /* zijk, in names of modes and of their divisors */

/* struct batch, find_batch, and the offsets of A and B. */
void contraction_emit_operands(struct kernel_source *source, const struct contraction *c);
/* to_integer() of the override of M, N or K of a batch entry, whose modes are named by the format `mode`. */
void contraction_emit_override(struct kernel_source *source, const struct contraction *c, int n, const char *mode);

/* A name made by printf, for the length of the full expression. */
struct name {
    char text[32];
};
struct name named(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A field that holds the bits of a double. */
void emit_real(struct kernel_source *source, double number, const char *name);
/* " + d * p.name" with an argument, " + d" for 1, nothing for 0. */
void emit_term(struct kernel_source *source, const char *mode, int64_t coefficient, const char *argument);
/* The modes of the index `value` as i64 variables <prefix>0 .. by the divisors p.<prefix>1 ..; in `modes`, which may
   be NULL, taps of a phase have the run-time divisor g.taps<phase>. */
void emit_split(struct kernel_source *source, const char *prefix, int count, const char *value,
                const struct modes *modes);

#endif
