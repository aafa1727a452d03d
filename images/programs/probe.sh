#!/bin/sh
# Proves, in seconds, that this base can build for the device: CMake configures, one kernel compiles.
set -eu
. /programs/toolchain.sh
# shellcheck disable=SC2086  # words by design
cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release $CMAKE_OPTIONS
[ -z "$DEVICE_TARGET" ] || {
    hipcc -O3 -shared -fPIC "--offload-arch=$DEVICE_TARGET" -o /build/libkernel.so /programs/kernel.hip
    /programs/code-objects.sh "$DEVICE_TARGET" /build/libkernel.so
}
