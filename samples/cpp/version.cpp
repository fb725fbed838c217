/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program: prints the version of the library. */
#include "weft/weft.h"
#include <iostream>

int main() {
    std::cout << "Weft " << weftGetVersion() << ", built with the header of " << WEFT_MAJOR << '.' << WEFT_MINOR << '.'
              << WEFT_PATCHLEVEL << ": " << weftGetErrorString(WEFT_STATUS_SUCCESS) << '\n';
    return 0;
}
