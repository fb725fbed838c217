/* SPDX-License-Identifier: Apache-2.0 */
/* Interface of the files that emit a row program. Terms are named v<name> wherever they are in scope; values that
   differ from row to row are fields of struct row. */
#ifndef WEFT_ENGINES_CUDA_ROWS_PRINT_H
#define WEFT_ENGINES_CUDA_ROWS_PRINT_H

#include "engines/cuda/rows/schedule.h"

/* The launch being emitted: all passes of a program or, if rows are split, some of them. */
struct stage {
    int closed;     /* passes whose partial results earlier launches have written */
    int passes_end; /* end of the range of passes that this launch runs */
    bool is_join;   /* only joins partial results */
    int joined;     /* the pass whose results are joined; -1: all passes */
    int64_t splits; /* per row */
    bool is_split;
    bool has_row_stores;
    int64_t left;          /* byte offset of the partial results that it writes to the workspace; -1: none */
    int64_t *partials;     /* by pass: byte offset of the existing partial results */
    int64_t *split_counts; /* by pass: their number per row */
};

struct emitter {
    const struct schedule *s;
    const struct rows *rows;
    const struct stage *stage;
    struct kernel_source *source;
    struct text *code;
};

static inline const struct operand *operand_at(const struct emitter *p, int k) { return &p->s->nest.operands[k]; }
static inline const char *type_of(const struct emitter *p, int k) { return cuda_type_name(operand_at(p, k)->type); }
static inline int64_t fast_stride(const struct emitter *p, int k) {
    return operand_at(p, k)->strides[schedule_fast_dim(p->s)];
}

/* ---- emit_operands.c: addresses of operands, and vector loads and stores ---- */

/* True if operand k is loaded per element. */
bool rows_is_element_load(const struct emitter *p, int k);
/* True if address computations need the operand: it is read or written, or it selects the part of a value. */
bool rows_is_located(const struct emitter *p, int k);
/* True if the operand varies along dims first .. end - 1; and true if all rows read the same elements of it. */
bool rows_depends_on(const struct operand *operand, int first, int end);
bool rows_is_broadcast_to_rows(const struct emitter *p, int k);
/* Emits coordinates c<first> .. of a position that counts through dims first .. end - 1. Positions count vectors along
   the fast dim. N is the vector length: WIDTH, or 1 in head and tail. */
void rows_emit_coordinates(struct emitter *p, int first, int end, const char *position);
/* Emits the contribution of dims first .. end - 1 to an operand's offset, from the coordinates in scope. */
void rows_emit_offset(struct emitter *p, int k, int first, int end);
/* Emits the address of a strip's first element, or of the element at the coordinates in scope. */
void rows_emit_address(struct emitter *p, int k, bool of_row);
/* Emits struct base: where strips begin, as offsets that all elements of a strip share. */
void rows_emit_base(struct emitter *p);
/* One vector of an operand: its field, its load and its store. once: the data is not read again soon. */
void rows_emit_vector_field(struct emitter *p, int k);
void rows_emit_load(struct emitter *p, int k, const char *into, bool once);
void rows_emit_store(struct emitter *p, int k, const char *from, bool of_row, const char *function);
/* Emits struct kept and struct broadcast: the resident data, and the functions that load, copy and read it. */
void rows_emit_kept(struct emitter *p);

/* ---- emit_rows.c: numbers of rows ---- */

/* Emits " const float v7 = ...;" for a term whose operands are in scope. */
void rows_emit_term(struct emitter *p, const struct term *term);
/* Emits the row's terms that become known at a stage, from the fields of earlier stages. */
void rows_emit_row_terms(struct emitter *p, int stage);
/* Emits struct row and the functions that open rows; and the functions that store row results, which come last. */
void rows_emit_row_numbers(struct emitter *p);
void rows_emit_row_stores(struct emitter *p);

/* ---- emit_passes.c ---- */

/* Emits struct pass<P> of all passes, and struct column, the sums that they accumulate. */
void rows_emit_columns(struct emitter *p);
void rows_emit_passes(struct emitter *p);

#endif
