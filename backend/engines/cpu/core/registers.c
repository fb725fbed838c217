/* SPDX-License-Identifier: Apache-2.0 */
/* Register allocation: the compiler numbers results consecutively, and this pass maps them to few registers of equal
   size. Fewer registers allow larger blocks, because together they fill PROGRAM_BYTES. */
#include "engines/cpu/core/program.h"

/* Lets the last computation write directly to memory if its result is stored without conversion. All inputs have been
   read by then, so an output may be stored over an input. */
static void store_directly(struct program *program) {
    int last = program->instruction_count - 1;
    /* Stores come last, so the instruction before them is the last that computes. */
    while (last >= 0 && program->instructions[last].verb == VERB_STORE)
        last--;
    if (last < 0 || program->instructions[last].verb != VERB_APPLY)
        return;
    struct instruction *apply = &program->instructions[last];
    /* A register is dense and of this type; memory of another type needs a conversion. */
    weftDataType_t type = apply->is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
    for (int i = last + 1; i < program->instruction_count; i++) {
        const struct instruction *store = &program->instructions[i];
        if (store->x == apply->dst && program->accesses[store->access].type == type)
            apply->access = store->access;
    }
}

/* True if an instruction may overwrite its operand: element i depends only on element i, of the same width. */
static bool works_in_place(const struct instruction *instruction) { return instruction->verb != VERB_CONVERT; }

/* Gives all registers the same number of elements, as many as fit together, in whole vectors. */
static void share_memory(struct program *program) {
    /* In elements: 16 floats or doubles are one or two of the widest vectors. */
    enum { VECTOR = 16 };
    bool is_wide = false;
    for (int i = 0; i < program->instruction_count; i++)
        is_wide = is_wide || program->instructions[i].is_wide;
    int bytes = is_wide ? (int)sizeof(double) : (int)sizeof(float);
    int room = PROGRAM_BYTES / (bytes * (program->register_count ? program->register_count : 1));
    program->block = room < PROGRAM_BLOCK ? room / VECTOR * VECTOR : PROGRAM_BLOCK;
    program->register_bytes = program->block * bytes;
}

/* Linear scan: programs are straight-line code, so a result is live until its last reader. Results without readers free
   their register at once. */
bool program_assign_registers(struct program *program) {
    /* Both are indexed by virtual register. */
    int last_reader[PROGRAM_INSTRUCTIONS + 1] = {0};
    unsigned char home[PROGRAM_INSTRUCTIONS + 1];
    bool is_taken[PROGRAM_REGISTERS] = {false};
    store_directly(program);
    for (int i = 0; i < program->instruction_count; i++) {
        const struct instruction *instruction = &program->instructions[i];
        /* Later readers overwrite earlier ones, so the last one remains. */
        const unsigned char reads[] = {instruction->x, instruction->b, instruction->t};
        for (int k = 0; k < 3; k++)
            if (reads[k] != PROGRAM_NO_REGISTER)
                last_reader[reads[k]] = i;
    }
    for (int i = 0; i < program->instruction_count; i++) {
        struct instruction *instruction = &program->instructions[i];
        unsigned char *const reads[] = {&instruction->x, &instruction->b, &instruction->t};
        bool frees[PROGRAM_REGISTERS] = {false};
        for (int k = 0; k < 3; k++) {
            if (*reads[k] == PROGRAM_NO_REGISTER)
                continue;
            /* From this point, the instruction names the physical register. */
            int virtual = *reads[k];
            *reads[k] = home[virtual];
            /* This instruction was its last reader. */
            frees[home[virtual]] = frees[home[virtual]] || last_reader[virtual] == i;
        }
        /* Works in place: an operand whose last reader this is passes its register to the result. */
        for (int r = 0; r < PROGRAM_REGISTERS; r++)
            is_taken[r] = is_taken[r] && !(frees[r] && works_in_place(instruction));
        if (instruction->dst != PROGRAM_NO_REGISTER) {
            /* The lowest free register, to keep the total small. */
            int r = 0;
            while (r < PROGRAM_REGISTERS && is_taken[r])
                r++;
            if (r == PROGRAM_REGISTERS)
                return false;
            is_taken[r] = last_reader[instruction->dst] > i;
            instruction->dst = home[instruction->dst] = (unsigned char)r;
            program->register_count = r >= program->register_count ? r + 1 : program->register_count;
        }
        /* Registers that could not be passed to the result itself are free after the instruction. */
        for (int r = 0; r < PROGRAM_REGISTERS; r++)
            is_taken[r] = is_taken[r] && (!frees[r] || r == instruction->dst);
    }
    share_memory(program);
    return true;
}
