/* SPDX-License-Identifier: Apache-2.0 */
/* The function that libweft_torch.so exports. */
#ifndef WEFT_TORCH_CALLS_H
#define WEFT_TORCH_CALLS_H

/* Functions with which weft.torch calls operators with minimal host overhead. The caller must hold the GIL.
   facts: a Python tuple that weft.torch creates.
   Returns a Python tuple, or NULL if the process has no interpreter with a GIL, or no torch version that Weft supports:
   then weft.torch calls the operators in Python. */
__attribute__((visibility("default"))) void *weftTorchFunctions(void *facts);

#endif
