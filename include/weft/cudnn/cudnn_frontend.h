/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN's C++ frontend under its own name: weft.hpp. See cudnn.h. */
#ifndef WEFT_CUDNN_CUDNN_FRONTEND_H
#define WEFT_CUDNN_CUDNN_FRONTEND_H

#include <iostream>

#include "cudnn.h"
#include "cudnn_frontend_utils.h"
#include "cudnn_frontend_version.h"

#endif
