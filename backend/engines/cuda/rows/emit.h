/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that print a row program share. Terms are named v<name> wherever they are in scope; what differs from
   row to row is a field of struct row. */
#ifndef WEFT_ENGINES_CUDA_ROWS_PRINT_H
#define WEFT_ENGINES_CUDA_ROWS_PRINT_H

#include "engines/cuda/rows/schedule.h"

/* The launch that is being printed: all passes of a program, or where rows are split some of them. */
struct stage {
    int closed;     /* passes whose partial results the launches before left */
    int passes_end; /* and the pass that this one ends before */
    bool joins;     /* only joins partial results */
    int joined;     /* those of this pass; -1: of all */
    int64_t splits; /* of each row */
    bool is_split;
    bool has_row_stores;
    int64_t left;          /* bytes to the partial results that it leaves in the workspace; -1: none */
    int64_t *partials;     /* by pass: bytes to the partial results that are there */
    int64_t *split_counts; /* by pass: how many of each row */
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

/* ---- emit_operands.c: where operands lie, and how vectors of them are loaded and stored ---- */

/* A load that elements want. */
bool rows_is_element_load(const struct emitter *p, int k);
/* Whether addresses depend on an operand: it is read or written, or tells parts of one apart. */
bool rows_is_located(const struct emitter *p, int k);
/* Whether an operand differs along dims first .. end - 1; whether all rows read it alike. */
bool rows_depends_on(const struct operand *operand, int first, int end);
bool rows_is_broadcast_to_rows(const struct emitter *p, int k);
/* Coordinates c<first> .. of a position that counts through dims first .. end - 1; vectors along the fast dim count as
   one. N is the width: WIDTH, or 1 of an element of head or tail. */
void rows_emit_coordinates(struct emitter *p, int first, int end, const char *position);
/* The part of an operand's offset that dims first .. end - 1 give, from the coordinates in scope. */
void rows_emit_offset(struct emitter *p, int k, int first, int end);
/* The address of a strip's first element, or of the element at the coordinates in scope. */
void rows_emit_address(struct emitter *p, int k, bool of_row);
/* struct base: where strips begin, offsets that all elements of a strip share. */
void rows_emit_base(struct emitter *p);
/* One vector of an operand: its field, its load and its store. once: nobody reads it again soon. */
void rows_emit_vector_field(struct emitter *p, int k);
void rows_emit_load(struct emitter *p, int k, const char *into, bool once);
void rows_emit_store(struct emitter *p, int k, const char *from, bool of_row, const char *function);
/* struct kept and struct broadcast: what stays, with all that loads, copies and reads it. */
void rows_emit_kept(struct emitter *p);

/* ---- emit_rows.c: numbers of rows ---- */

/* "    const float v7 = ...;" of a term whose uses are in scope. */
void rows_emit_term(struct emitter *p, const struct term *term);
/* Terms of the row that become known at a stage, from the fields of those before. */
void rows_emit_row_terms(struct emitter *p, int stage);
/* struct row, and what opens rows; and what stores their numbers, behind all else. */
void rows_emit_row_numbers(struct emitter *p);
void rows_emit_row_stores(struct emitter *p);

/* ---- emit_passes.c ---- */

/* struct pass<P> of all passes, and struct column, the sums that they add to. */
void rows_emit_columns(struct emitter *p);
void rows_emit_passes(struct emitter *p);

#endif
