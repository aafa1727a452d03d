#!/bin/sh
# Compiles the engine in /src and leaves what an image ships in /out.
# CMAKE_OPTIONS, TARGETS: words. DEVICE_TARGET: the only GPU the code may be for. CCACHE: name of the cache.
set -eu
export CCACHE_DIR="/ccache/$CCACHE" CCACHE_COMPILERCHECK=content CCACHE_MAXSIZE=5G
# Times of files say nothing here: the tree is copied anew for each build.
export CCACHE_SLOPPINESS=include_file_mtime,include_file_ctime
. /programs/toolchain.sh
ccache --zero-stats >/dev/null
# shellcheck disable=SC2086  # words by design
cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release $CMAKE_OPTIONS $TOOLCHAIN \
    -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN'
# shellcheck disable=SC2086
cmake --build /build -j "$(cat /run/secrets/jobs)" --target $TARGETS
ccache --show-stats

mkdir -p /out/app /out/usr/share/licenses/llama.cpp
cp /src/LICENSE /out/usr/share/licenses/llama.cpp/
cp -a /build/bin/*.so* /out/app/
for target in $TARGETS; do cp "/build/bin/$target" /out/app/; done
find /out/app -type f -exec strip --strip-unneeded {} +
[ -z "$DEVICE_TARGET" ] || /programs/code-objects.sh "$DEVICE_TARGET" /out/app/libggml-hip.so
/out/app/llama-server --help >/out/app/llama-server.help
