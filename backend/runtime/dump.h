/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the compiler's input and output to files, for debugging and bug reports. With WEFT_DUMP_DIR set, each program
   gets a folder there, <name>-<start of its key>, with the text, its headers, options.txt, log.txt and image.cubin or
   image.ptx. */
#ifndef WEFT_RUNTIME_DUMP_H
#define WEFT_RUNTIME_DUMP_H

#include "runtime/nvrtc.h"

/* A failure only logs a warning. `compiled` may be empty, for example after a failed compilation. */
void dump_program(const struct program *program, const struct nvrtc_choice *choice, const uint8_t key[32],
                  const struct compiled *compiled);

#endif
