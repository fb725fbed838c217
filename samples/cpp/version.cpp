/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program: prints the version of the library it runs with. */
#include <iostream>
#include <weft/weft.hpp>

int main() {
    std::cout << "Weft " << weftGetVersion() << ", built with the header of " << WEFT_MAJOR << '.' << WEFT_MINOR << '.'
              << WEFT_PATCHLEVEL << ": " << weftGetErrorString(WEFT_STATUS_SUCCESS) << '\n';
    return weft::error_t().is_good() ? 0 : 1;
}
