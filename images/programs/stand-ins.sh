#!/bin/sh
# STAND_INS: LIBRARY:USER:PREFIX words. For each, a library that has every function PREFIX* which the library USER
# wants from LIBRARY, and nothing behind them: a call ends the process with the function's name. It lets USER be
# loaded without a LIBRARY of hundreds of megabytes that the engine never calls.
set -eu
mkdir -p /out/usr/lib/x86_64-linux-gnu
cd /out/usr/lib/x86_64-linux-gnu
for word in $STAND_INS; do
    library=${word%%:*} rest=${word#*:}
    user=/usr/lib/x86_64-linux-gnu/${rest%%:*} prefix=${rest#*:}
    {
        echo '#include <stdio.h>'
        echo '#include <stdlib.h>'
        echo "#define REFUSED(name) void name(void) { \\"
        echo "    fputs(\"haloforge: \" #name \" of $library was called, which this image leaves out\\n\", stderr); abort(); }"
        nm -D --undefined-only "$user" | sed -n "s/^ *U \($prefix[A-Za-z0-9_]*\)\$/REFUSED(\1)/p"
    } >/tmp/stand-in.c
    grep -q '^REFUSED' /tmp/stand-in.c || { echo "haloforge: this base has no $user that wants $prefix*"; exit 1; }
    cc -O2 -s -shared -fPIC -Wl,-soname,"$library" -o "$library" /tmp/stand-in.c
    # The engine must not use what would end there: no function of USER with LAPACK's names.
    nm -D --undefined-only /engine/*.so | sed -n 's/^ *U //p' | grep -E "$REFUSED_CALLS" >/tmp/refused || continue
    echo "haloforge: this base leaves out $library, and the engine calls"
    cat /tmp/refused
    exit 1
done
