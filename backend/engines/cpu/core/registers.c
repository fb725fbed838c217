/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a program's few registers holds what: the compiler numbers results as they come, this gives them homes, and
   all registers the same size. Fewer registers make larger blocks, as together they fill PROGRAM_BYTES. */
#include "engines/cpu/core/program.h"

/* Lets the last computation write to memory at once when its result is stored as it is. All else has been read by then,
   so that an output may take the place of an input. */
static void store_directly(struct program *program) {
    int last = program->instruction_count - 1;
    /* Stores stand last, so the instruction before them is the last that computes. */
    while (last >= 0 && program->instructions[last].verb == VERB_STORE)
        last--;
    if (last < 0 || program->instructions[last].verb != VERB_APPLY)
        return;
    struct instruction *apply = &program->instructions[last];
    /* A register is dense and of this type; memory of another needs a conversion. */
    weftDataType_t type = apply->is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
    for (int i = last + 1; i < program->instruction_count; i++) {
        const struct instruction *store = &program->instructions[i];
        if (store->x == apply->dst && program->accesses[store->access].type == type)
            apply->access = store->access;
    }
}

/* Whether an instruction may write where it reads: element i depends on element i alone, of the same width. */
static bool works_in_place(const struct instruction *instruction) { return instruction->verb != VERB_CONVERT; }

/* Gives all registers as many elements as they have room for together, in whole vectors. */
static void share_memory(struct program *program) {
    /* Elements: 16 floats or doubles are one or two of the widest vectors. */
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
    /* Both by virtual register. */
    int last_reader[PROGRAM_INSTRUCTIONS + 1] = {0};
    unsigned char home[PROGRAM_INSTRUCTIONS + 1];
    bool is_taken[PROGRAM_REGISTERS] = {false};
    store_directly(program);
    for (int i = 0; i < program->instruction_count; i++) {
        const struct instruction *instruction = &program->instructions[i];
        /* Later readers overwrite earlier ones, so that the last one stays. */
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
            /* From here on the instruction names the register, not the result. */
            int virtual = *reads[k];
            *reads[k] = home[virtual];
            /* Read by nobody behind this instruction. */
            frees[home[virtual]] = frees[home[virtual]] || last_reader[virtual] == i;
        }
        /* In place: an operand that ends here gives its register to the result. */
        for (int r = 0; r < PROGRAM_REGISTERS; r++)
            is_taken[r] = is_taken[r] && !(frees[r] && works_in_place(instruction));
        if (instruction->dst != PROGRAM_NO_REGISTER) {
            /* The lowest that is free, so that few are used in all. */
            int r = 0;
            while (r < PROGRAM_REGISTERS && is_taken[r])
                r++;
            if (r == PROGRAM_REGISTERS)
                return false;
            is_taken[r] = last_reader[instruction->dst] > i;
            instruction->dst = home[instruction->dst] = (unsigned char)r;
            program->register_count = r >= program->register_count ? r + 1 : program->register_count;
        }
        /* What could not be given to the result itself is free behind the instruction. */
        for (int r = 0; r < PROGRAM_REGISTERS; r++)
            is_taken[r] = is_taken[r] && (!frees[r] || r == instruction->dst);
    }
    share_memory(program);
    return true;
}
