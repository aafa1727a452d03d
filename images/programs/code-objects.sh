#!/bin/sh
# code-objects.sh TARGET LIBRARY: the library holds device code for that GPU and for no other.
set -eu
objdump=$(find /usr/bin /usr/lib/llvm* /opt/rocm/llvm/bin -name 'llvm-objdump*' 2>/dev/null | sort | tail -n 1)
found=$("$objdump" --offloading "$2" | grep -o 'amdgcn-amd-amdhsa--[0-9a-z:+-]*' | sort | uniq -c)
rm -f "$2".*.hipv4-* "$2".*.host-*
echo "haloforge: device code in ${2##*/}:"
echo "$found"
[ "$(echo "$found" | awk '{print $2}')" = "amdgcn-amd-amdhsa--$1" ] ||
    { echo "haloforge: expected code for $1 and for nothing else"; exit 1; }
