/* SPDX-License-Identifier: Apache-2.0 */
/* The function that libweft_xla.so exports. */
#ifndef WEFT_XLA_EXECUTE_H
#define WEFT_XLA_EXECUTE_H

/* A handler of XLA's foreign function interface, version 0.1, which executes a saved plan with the buffers and the
   stream of the call: weft.jax registers it, and sets the attributes that it reads.
   call_frame: the XLA_FFI_CallFrame.
   Returns an XLA_FFI_Error with Weft's error message, or NULL. */
__attribute__((visibility("default"))) void *weftXlaExecute(void *call_frame);

#endif
