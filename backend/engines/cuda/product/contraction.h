/* SPDX-License-Identifier: Apache-2.0 */
/* The contraction family: C[z,i,j] = epilogue(sum over k of A[z,i,k] * B[z,k,j]) for a matmul or any of the three
   convolution directions, followed by fused pointwise operations. Each of the four indices (batch z, row i, column j,
   k) is a mixed-radix number: its modes give the position of an element in A, in B and in the result and, for images,
   its coordinates. One set of kernels serves all four operations; the parts that differ are generated from the
   modes. */
#ifndef WEFT_ENGINES_CUDA_CONTRACTION_H
#define WEFT_ENGINES_CUDA_CONTRACTION_H

#include "engines/cuda/core/formula.h"
#include "engines/cuda/core/kernel.h"
#include "graph/ops/block_scale.h"

enum index { BATCH, ROW, COLUMN, K, INDICES };
enum { OPERAND_A, OPERAND_B, OPERANDS };
enum { COORDINATES = 3, MODES_MAX = 16, EPILOGUE_OPERANDS_MAX = 32, REDUCTIONS_MAX = 4, NO_DIM = -1, NO_PHASE = -1 };
enum { PROLOGUE_MAX = 16, NO_PROLOGUE = -1 }; /* pointwise operations before a product */

struct mode {
    int64_t extent;
    int64_t stride[OPERANDS];            /* distance in elements between consecutive values of the mode */
    int64_t step[OPERANDS][COORDINATES]; /* increment of the coordinates per value of the mode */
    int dim;                             /* dimension of the result that the mode counts; NO_DIM for K */
    int64_t dim_step;                    /* increment of the coordinate in that dimension */
    int phase;                           /* BATCH: the mode selects this phase; K: the mode counts the phase's taps;
                                            otherwise NO_PHASE */
};

/* An index as a list of modes, slowest first. An index without modes has extent 1. */
struct modes {
    int count;
    struct mode at[MODES_MAX];
};

/* Operand A or B. The element with all modes 0 is stored at `first`. Elements whose coordinate is outside 0 .. size - 1
   have the padding value and are not read. Offsets are in elements from the tensor's address and may be negative
   because of padding, so `first` itself need not be inside the tensor. */
struct product_operand {
    int value;
    const struct tensor *tensor;
    const struct block_scale_dequantize_op *scaling; /* multiplies the elements by block scales, or NULL */
    int prepared; /* the value that the prologue's pointwise operations produce from it, or NO_PROLOGUE */
    int64_t first;
    bool is_checked[COORDINATES];
    int64_t start[COORDINATES], size[COORDINATES];
    /* `run` contiguous elements are read per access, along K if is_k_major, else along the operand's other index. */
    int run;
    bool is_k_major;
};

/* A spatial dimension of a data gradient with a stride above 1. Elements of dx at a distance of `stride` see dy through
   the same taps, so each of the `stride` phases is a separate sum over every tap_step-th tap. */
struct phase {
    int coordinate;
    int64_t taps, tap_step, stride, dilation, pre;
    int64_t a_stride, b_stride; /* elements between consecutive positions in dy and between consecutive taps in w */
};

/* Instruction (mma or FMA) and types of the products and their sums. */
enum arithmetic { MMA_F16, MMA_BF16, MMA_INT8, MMA_TF32, FMA_FLOAT, FMA_DOUBLE, FMA_INT32, FMA_INT64 };

/* How the epilogue uses an operand. */
enum epilogue_role {
    EPILOGUE_LOAD,    /* reads a tensor in addition to the sums */
    EPILOGUE_STORE,   /* writes a tensor */
    EPILOGUE_INDEX,   /* the coordinate of the element, as GEN_INDEX requires; no memory access */
    EPILOGUE_LIMIT,   /* skips stores at this coordinate and beyond; no memory access */
    EPILOGUE_OLD,     /* reads the previous contents of the result, which are scaled by beta */
    EPILOGUE_REDUCED, /* produces partial results of a reduction; the final reduction kernel writes the tensor */
};

/* `strides` are in elements, by index (batch, row, column) and by the modes of the epilogue. */
struct epilogue_operand {
    enum epilogue_role role;
    int value;
    weftDataType_t type;
    int64_t strides[K][MODES_MAX];
    int64_t bound;     /* LIMIT: the coordinate must be below this */
    bool is_auxiliary; /* LOAD, OLD: the kernel supplies the value, and fetch() skips it */
};

/* The index that a reduction keeps; the batch may be reduced, too (keeps_batch). */
enum span { SPAN_COLUMN, SPAN_ROW, SPAN_ALL, SPANS };

struct reduced_span {
    int count;
    bool keeps_batch;
    int64_t elements; /* results per reduction */
};

/* A reduction fused after the product. Its results start at number `first` of their span. */
struct fused_reduction {
    const struct node *node;
    enum span span;
    int first;
    int mode; /* weftReduceTensorOp_t of a reduction node */
};

/* The epilogue: everything after the sum. It has its own modes for the indices of the result, and operands that are
   addressed by these modes. */
struct epilogue {
    int mode_count[K];
    int64_t extents[K][MODES_MAX];
    int count;
    struct epilogue_operand at[EPILOGUE_OPERANDS_MAX];
    enum index lead; /* the index whose last mode is contiguous in the result */
    int run;
    int reduction_count;
    bool reduces_stored; /* the kernel reduces the single result when it stores it, so evaluate() does not */
    struct fused_reduction reductions[REDUCTIONS_MAX];
    struct reduced_span spans[SPANS];
};

/* Sizes in elements of the result. A block has warps_m * warps_n warps, or one thread per thread_m x thread_n
   results. */
struct tile {
    int rows, columns;
    int warps_m, warps_n;   /* MMA kernels only */
    int thread_m, thread_n; /* FMA kernels only */
    double efficiency;
};

/* The fields up to `limited_dim` are read from the region by contraction_find and contraction_shape. The fields after
   it are chosen by contraction_plan, depending on the device and the knobs. */
struct contraction {
    const struct region *region;
    const struct node *node;
    int prologue_count;
    const struct node
        *prologue_nodes[PROLOGUE_MAX]; /* pointwise nodes, last one first; they read one tensor that has the
                                              operand's dims */
    bool narrows;                      /* floats may lose precision on tensor cores */
    int result;
    double alpha, beta, fill;
    const struct tensor *used[3]; /* overrides of the number of rows, columns and k; NULL: no override */
    struct product_operand operand[OPERANDS];
    struct modes modes[INDICES];
    int phase_count;
    struct phase phases[COORDINATES];
    double k_count; /* products per result element, for predictions */
    bool has_limit; /* a mode exceeds this dimension of the result */
    int limited_dim;

    enum arithmetic arithmetic;
    struct epilogue epilogue;
    bool is_direct; /* one thread per run of results instead of tiles */
    bool is_small;  /* all indices fit in 31 bits */
    bool has_k16;   /* mma.sync multiplies 16 halves along k (sm_80 and later) instead of 8 */
    const struct tile *tile;
    int splits; /* split-K factor; partial sums are combined through the workspace */
    int64_t steps_per_split;
    double seconds;
};

static inline weftDataType_t operand_type(const struct contraction *c, int operand) {
    return (weftDataType_t)c->operand[operand].tensor->type;
}

/* ---- find.c: the product of a region, its prologue and its epilogue ---- */

/* Finds the only product of a region, its shape, and the pointwise operations after it. */
weftStatus_t contraction_find(struct contraction *c, const struct region *region);
/* Like contraction_find, but also accepts reductions after the product, and operands that are scaled by blocks or
   produced by pointwise operations. Such an operand is then the tensor that these operations read. */
weftStatus_t contraction_find_prepared(struct contraction *c, const struct region *region);
/* True if a node of the region comes after the product: it is neither the product nor part of the prologue. */
bool contraction_is_in_epilogue(const struct contraction *c, const struct node *node);
static inline bool contraction_has_overrides(const struct contraction *c) {
    return c->used[0] || c->used[1] || c->used[2];
}
/* RELAX_TF32 if an operation multiplies floats, or half by bfloat16, which only float can represent. */
int contraction_relaxes(const struct graph *graph, int node);
/* In-place rule: the same thread reads each run before it overwrites it, but operands of the product and of its
   prologue may be read by all threads, so they must not alias the output. */
bool contraction_may_alias(const struct step *step, int in, int out);

/* ---- tiles.c: code generation shared by the product families ---- */

/* Emits the beginning of every kernel. */
void contraction_emit_begin(struct kernel_source *source, const struct contraction *c);
/* Begins the build of a step: allocates its state and returns its first kernel, or NULL, with a note in the step's
   detail, for an empty result. */
weftStatus_t contraction_add_kernel(struct cuda_kernel **kernel, struct step *step, const struct contraction *c,
                                    struct arena *arena);
/* Sets a one-dimensional grid. */
void contraction_set_launch(struct cuda_kernel *kernel, int64_t blocks, int64_t threads, int64_t shared_bytes);
/* Number of blocks for `pieces` work items; blocks loop over the remaining items. */
uint32_t contraction_grid(int64_t pieces);
/* A tiled kernel: the code before the operand offsets, and the end of its generation. */
void contraction_emit_tile(struct kernel_source *source, const struct contraction *c);
weftStatus_t contraction_end_tiles(struct kernel_source *source, struct cuda_kernel *kernel,
                                   const struct contraction *c, const int64_t tiles[3], struct arena *arena);
/* Emits the destination of the sums: epilogue(), or the workspace if K is split. */
void contraction_emit_epilogue(struct kernel_source *source, const struct contraction *c);
/* Adds the kernel that combines the partial sums of a split, and its workspace. */
weftStatus_t contraction_add_combine(struct step *step, const struct contraction *c, struct arena *arena);

/* ---- shape.c: from an operation to modes ---- */

/* Computes modes and operands of the node; NOT_SUPPORTED, with a reason, if kernels cannot index it. */
weftStatus_t contraction_shape(struct contraction *c, const struct node *node);
/* Swaps A and B and, with them, rows and columns. Call it before the plan. */
void contraction_swap(struct contraction *c);
int64_t modes_extent(const struct modes *modes);
int64_t contraction_elements(const struct contraction *c); /* elements of the result */
/* Merges adjacent modes that both operands traverse as one. */
void modes_merge(struct modes *modes);
/* Moves rows and columns into the batch, sorted by memory order, because the direct kernel numbers all results
   there. */
void contraction_flatten(struct contraction *c);

/* ---- epilogue.c: operations after the sum ---- */

/* Finds the operands and merges their modes; NOT_SUPPORTED, with a reason, for operations that cannot be fused. */
weftStatus_t epilogue_analyse(struct contraction *c);
/* Emits fetch(p, z, i, j), which loads the epilogue's operands; evaluate(.., sum, fetched), which computes a run of
   results; epilogue(.., sum[, fetched]), which also stores it; and, if there are reductions, exists(p, z, i, j). */
void epilogue_emit(struct kernel_source *source, const struct contraction *c);
/* Approximate instructions per result element, in addition to its conversion. */
double epilogue_instructions(const struct contraction *c);
/* Registers for the operands of 16 columns of two rows. */
int epilogue_fetched_words(const struct epilogue *epilogue);
/* The only result, if its elements have `bytes` bytes and its rows consist of whole 16-byte accesses; otherwise
   NULL. */
const struct epilogue_operand *epilogue_find_staged(const struct contraction *c, int bytes);
/* Number of results (one or two) if all of them qualify as above, otherwise 0. */
int epilogue_find_stored(const struct contraction *c, int bytes, const struct epilogue_operand *stores[2]);
const struct epilogue_operand *epilogue_find_half(const struct contraction *c); /* of elements of 2 bytes */
/* True if all reductions are over columns and read only the single staged 16-bit result. */
bool epilogue_reduces_only_stored(const struct contraction *c);
/* True if operand k has the layout of `store`, so that the code that moves results can move it: 16-bit elements in
   whole 16-byte accesses. */
bool epilogue_has_layout_of(const struct contraction *c, int k, const struct epilogue_operand *store);
/* Emits address_of_result(p, z, i, j): the address of an element of store k, or nullptr if it does not exist. Call it
   after epilogue_emit. */
void epilogue_emit_address(struct kernel_source *source, const struct contraction *c, int k);

/* ---- epilogue_offsets.c: addresses of epilogue operands ---- */

/* True if operand k is the same for all rows; if the phases of the result end at different positions, also for all
   phases. */
bool epilogue_is_per_column(const struct epilogue *epilogue, int k);
/* Emits fields of the arguments: addresses, bounds, and the divisors and strides of modes. */
void epilogue_emit_arguments(struct kernel_source *source, const struct epilogue *epilogue);
/* Emits the modes f<index><d> of z, i and j. */
void epilogue_emit_modes(struct kernel_source *source, const struct epilogue *epilogue);
/* Emits the statement `out` for elements that a phase lacks. per_column selects the tests that are the same for all
   rows, or the others. */
void epilogue_emit_limits(struct kernel_source *source, const struct epilogue *epilogue, bool per_column,
                          const char *out);
void epilogue_emit_all_limits(struct kernel_source *source, const struct epilogue *epilogue, const char *out);
/* Emits the offset of operand k: the sum of modes times strides. */
void epilogue_emit_offset(struct kernel_source *source, const struct epilogue *epilogue, int k);

/* ---- reductions.c: reductions after the product ---- */

bool reductions_support(const struct node *node);
extern const char *const span_names[SPANS];
/* Determines the span of a reduction. Call it before the reduction's operands are added to the epilogue. NOT_SUPPORTED,
   with a reason, for reductions that tiles cannot compute. */
weftStatus_t reductions_add(struct contraction *c, const struct node *node);
/* Emits struct column_reductions, row_reductions and whole_reductions, each with COUNT, none(t) and joined(t, a, b). */
void reductions_emit_kinds(struct kernel_source *source, const struct contraction *c);
/* Emits the fields of struct results and the code of evaluate() that fills them with the contribution of each result to
   each reduction. */
void reductions_emit_fields(struct kernel_source *source, const struct epilogue *epilogue);
void reductions_emit_elements(struct kernel_source *source, const struct contraction *c);
/* True if the reductions read only this value. reductions_emit_stored then emits elements_of(p, bits), which computes
   their inputs from the stored 16 bits. */
bool reductions_read_only_value(const struct contraction *c, int value);
void reductions_emit_stored(struct kernel_source *source, const struct contraction *c,
                            const struct epilogue_operand *store);
/* Emits the addresses and the number of partial sums. They are stored in the workspace, the lines of one span after
   those of another; a line has one contiguous partial result for each total of the span. */
void reductions_emit_partials(struct kernel_source *source, const struct contraction *c, const int64_t lines[SPANS],
                              enum span span);
/* Time to combine the partial sums, including their traffic. */
double reductions_seconds(const struct contraction *c);
/* Adds one kernel per span that combines the partial sums, and the workspace. */
weftStatus_t reductions_build(struct step *step, const struct contraction *c, const int64_t lines[SPANS],
                              struct arena *arena);

/* ---- arithmetic.c ---- */

struct arithmetic_row {
    const char *a_staged, *b_staged; /* names of types in shared memory; NULL: the operand's own type */
    weftDataType_t sum;
    bool is_mma;
    int bytes;   /* size of a staged element */
    int block_k; /* elements of k per step */
};
extern const struct arithmetic_row arithmetic_rows[];
int64_t contraction_sum_bytes(const struct contraction *c);
/* The math type that the operation requests. */
weftDataType_t contraction_math(const struct node *node);
/* Chooses the arithmetic from the operands' types, k and the math type. */
enum arithmetic contraction_arithmetic(const struct contraction *c, const struct device *device);
/* Peak operations per second of one multiprocessor. */
double contraction_rate(enum arithmetic arithmetic, const struct device *device);

/* ---- plan.c: tile and splits ---- */

/* Fills in the fields that do not depend on the tile, given the shape: the arithmetic and the epilogue. It merges
   modes, so callers that need the operation's original modes must read them first. */
weftStatus_t contraction_analyse(struct contraction *c, const struct device *device);
/* Runs contraction_analyse and chooses the tile and the splits. */
weftStatus_t contraction_plan(struct contraction *c, const struct device *device, const struct knob_choices *knobs);
/* The result of a convolution for kernels that compute positions themselves: modes of the result only, float sums, and
   the epilogue. Rows are images and positions and columns are channels; for the filter gradient, rows are filters and
   columns are taps and channels. NOT_SUPPORTED, with a reason, for an epilogue that cannot be fused and for 2^31 or
   more results. */
struct conv_geometry;
weftStatus_t contraction_analyse_result(struct contraction *c, const struct conv_geometry *g);
/* Time to move all bytes that an analysed contraction reads and writes. */
double contraction_memory_seconds(const struct contraction *c, const struct device *device);
enum { TILE_ROWS = 7, SPLITS_MAX = 64 }; /* rows of the tile table; maximum number of K splits */

/* ---- emit.c: text and arguments of the kernels ---- */

extern const char index_letters[INDICES + 1]; /* "zijk": letters of the indices in names of modes and their divisors */

/* Emits struct batch, find_batch, and the offsets of A and B. */
void contraction_emit_operands(struct kernel_source *source, const struct contraction *c);
/* Emits to_integer() of the override of M, N or K for a batch entry. `mode` is the format of the names of the entry's
   modes. */
void contraction_emit_override(struct kernel_source *source, const struct contraction *c, int n, const char *mode);

/* A formatted name. It lives until the end of the full expression. */
struct name {
    char text[32];
};
struct name named(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Emits a field that holds the bits of a double. */
void emit_real(struct kernel_source *source, double number, const char *name);
/* Emits " + d * p.name" if there is an argument, " + d" for 1, and nothing for 0. */
void emit_term(struct kernel_source *source, const char *mode, int64_t coefficient, const char *argument);
/* Emits the modes of the index `value` as i64 variables <prefix>0 .. with the divisors p.<prefix>1 ... If `modes` is
   not NULL, taps of a phase are split by the run-time divisor g.taps<phase>. */
void emit_split(struct kernel_source *source, const char *prefix, int count, const char *value,
                const struct modes *modes);

#endif
