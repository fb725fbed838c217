/* SPDX-License-Identifier: Apache-2.0 */
/* Sub-libraries, to which programs link by name: each function jumps to the function of libcudnn.so.9 with the same
   name, whose address is looked up when the sub-library is loaded. FUNCTIONS(X) is the list. */
#ifndef WEFT_CUDNN_FORWARD_H
#define WEFT_CUDNN_FORWARD_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#if defined(__x86_64__)
#define JUMP_THROUGH(slot) "    endbr64\n    jmp *" slot "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP_THROUGH(slot) "    bti c\n    adrp x16, " slot "\n    ldr x16, [x16, :lo12:" slot "]\n    br x16\n"
#else
#error "The sub-libraries of libcudnn.so.9 have no jump instruction for this processor."
#endif

/* The address of a function, and the function itself. */
#define FORWARD(name)                                                                                                  \
    __attribute__((visibility("hidden"))) void *slot_##name;                                                           \
    __asm__(".text\n"                                                                                                  \
            ".globl " #name "\n"                                                                                       \
            ".type " #name ", %function\n" #name ":\n" JUMP_THROUGH("slot_" #name) ".size " #name ", . - " #name       \
                                                                                   "\n");
#define NAME_AND_SLOT(name) {#name, &slot_##name},

FUNCTIONS(FORWARD)

static const struct {
    const char *name;
    void **slot;
} forwarded[] = {FUNCTIONS(NAME_AND_SLOT){NULL, NULL}};

__attribute__((constructor)) static void look_up(void) {
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY);
    for (size_t i = 0; library && forwarded[i].name; i++)
        *forwarded[i].slot = dlvsym(library, forwarded[i].name, "libcudnn.so.9");
}

#endif
