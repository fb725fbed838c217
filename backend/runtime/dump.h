/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps what the compiler saw and made, for reading and for reports: with WEFT_DUMP_DIR set, each program gets a folder
   there, <name>-<start of its key>, with the text, its headers, options.txt, log.txt and image.cubin or image.ptx. */
#ifndef WEFT_RUNTIME_DUMP_H
#define WEFT_RUNTIME_DUMP_H

#include "runtime/nvrtc.h"

/* Fails silently but for a warning in the log. `compiled` may be empty, as after a failure. */
void dump_program(const struct program *program, const struct nvrtc_choice *choice, const uint8_t key[32],
                  const struct compiled *compiled);

#endif
