/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a program's few registers holds what: the compiler numbers results as they come, this gives them homes. */
#include "engines/cpu/core/program.h"

/* Lets the last computation write to memory at once when its result is stored as it is. All else has been read by then,
   so that an output may take the place of an input. */
static void store_directly(struct program *program) {
    int last = program->instruction_count - 1;
    while (last >= 0 && program->instructions[last].verb == VERB_STORE)
        last--;
    if (last < 0 || program->instructions[last].verb != VERB_APPLY)
        return;
    struct instruction *apply = &program->instructions[last];
    weftDataType_t type = apply->is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
    for (int i = last + 1; i < program->instruction_count; i++) {
        const struct instruction *store = &program->instructions[i];
        if (store->x == apply->dst && program->accesses[store->access].type == type)
            apply->access = store->access;
    }
}

/* Whether an instruction may write where it reads. */
static bool works_in_place(const struct instruction *instruction) { return instruction->verb != VERB_CONVERT; }

/* Gives all registers as many elements as they have room for together, in whole vectors. */
static void share_memory(struct program *program) {
    enum { VECTOR = 16 };
    bool is_wide = false;
    for (int i = 0; i < program->instruction_count; i++)
        is_wide = is_wide || program->instructions[i].is_wide;
    int bytes = is_wide ? (int)sizeof(double) : (int)sizeof(float);
    int room = PROGRAM_BYTES / (bytes * (program->register_count ? program->register_count : 1));
    program->block = room < PROGRAM_BLOCK ? room / VECTOR * VECTOR : PROGRAM_BLOCK;
    program->register_bytes = program->block * bytes;
}

/* A linear scan: programs are straight lines, so a result's life ends at its last reader. Results that nobody reads
   free their register at once. */
bool program_assign_registers(struct program *program) {
    int last_reader[PROGRAM_INSTRUCTIONS + 1] = {0};
    unsigned char home[PROGRAM_INSTRUCTIONS + 1];
    bool is_taken[PROGRAM_REGISTERS] = {false};
    store_directly(program);
    for (int i = 0; i < program->instruction_count; i++) {
        const struct instruction *instruction = &program->instructions[i];
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
            int virtual = *reads[k];
            *reads[k] = home[virtual];
            frees[home[virtual]] = frees[home[virtual]] || last_reader[virtual] == i;
        }
        for (int r = 0; r < PROGRAM_REGISTERS; r++)
            is_taken[r] = is_taken[r] && !(frees[r] && works_in_place(instruction));
        if (instruction->dst != PROGRAM_NO_REGISTER) {
            int r = 0;
            while (r < PROGRAM_REGISTERS && is_taken[r])
                r++;
            if (r == PROGRAM_REGISTERS)
                return false;
            is_taken[r] = last_reader[instruction->dst] > i;
            instruction->dst = home[instruction->dst] = (unsigned char)r;
            program->register_count = r >= program->register_count ? r + 1 : program->register_count;
        }
        for (int r = 0; r < PROGRAM_REGISTERS; r++)
            is_taken[r] = is_taken[r] && (!frees[r] || r == instruction->dst);
    }
    share_memory(program);
    return true;
}
