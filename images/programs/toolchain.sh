# Sourced: where the base has a HIP compiler, name it to CMake and let ccache serve it too.
TOOLCHAIN=
if command -v hipconfig >/dev/null; then
    HIPCXX="$(hipconfig -l)/clang++"
    HIP_PATH="$(hipconfig -R)"
    export HIPCXX HIP_PATH
    TOOLCHAIN=-DCMAKE_HIP_COMPILER_LAUNCHER=ccache
fi
