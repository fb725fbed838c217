/* SPDX-License-Identifier: Apache-2.0 */
/* The workspace of plans on the CPU: memory that a thread reuses for all of its calls. */
#ifndef WEFT_TORCH_WORKSPACE_H
#define WEFT_TORCH_WORKSPACE_H

#include <stddef.h>

/* Returns at least `bytes` bytes, aligned as weftExecute requires, which stay valid until the next call in this thread
   or its end. NULL if out of memory. */
void *workspace_of_thread(size_t bytes);

#endif
