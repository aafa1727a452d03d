#!/bin/sh
# STAND_INS: LIBRARY:USER:PREFIX words. For each, a library that has every function PREFIX* which the library USER
# wants from LIBRARY, and nothing behind them: a call ends the process with the function's name. It lets USER be
# loaded without a LIBRARY of hundreds of megabytes that the engine never calls.
# REFUSED_CALLS: matches the functions of USER that would end there; the engine must import none of them.
set -eu
mkdir -p /out/usr/lib/x86_64-linux-gnu
cd /out/usr/lib/x86_64-linux-gnu
for word in $STAND_INS; do
    library=${word%%:*} rest=${word#*:}
    user=/usr/lib/x86_64-linux-gnu/${rest%%:*} prefix=${rest#*:}
    nm -D --undefined-only "$user" | sed -n "s/^ *U \($prefix[A-Za-z0-9_]*\)\$/REFUSED(\1)/p" >/tmp/functions.c
    [ -s /tmp/functions.c ] || { echo "haloforge: this base has no $user that wants $prefix*"; exit 1; }
    cc -O2 -s -shared -fPIC -include /programs/stand-in.h "-DLIBRARY=\"$library\"" -Wl,-soname,"$library" \
        -o "$library" /tmp/functions.c
    nm -D --undefined-only /engine/*.so | sed -n 's/^ *U //p' | sort -u >/tmp/imported
    if grep -E "$REFUSED_CALLS" /tmp/imported >/tmp/refused; then
        echo "haloforge: this base leaves out $library, and the engine calls"
        cat /tmp/refused
        exit 1
    fi
done
