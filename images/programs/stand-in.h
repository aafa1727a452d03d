/* Included before the list of functions that a stand-in library has. LIBRARY: the name of what it stands for. */
#include <stdio.h>
#include <stdlib.h>

#define REFUSED(name)                                                                                \
    void name(void) {                                                                                \
        fputs("haloforge: " #name " of " LIBRARY " was called, which this image leaves out\n", stderr); \
        abort();                                                                                     \
    }
