/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program: prints the version of the library. */
#include "weft/weft.h"
#include <stdio.h>

int main(void) {
    printf("Weft %zu, built with the header of %d.%d.%d: %s\n", weftGetVersion(), WEFT_MAJOR, WEFT_MINOR,
           WEFT_PATCHLEVEL, weftGetErrorString(WEFT_STATUS_SUCCESS));
    return 0;
}
