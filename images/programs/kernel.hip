// The smallest kernel that tells whether a toolchain can make code for the device.
#include <hip/hip_runtime.h>

__global__ void scale(float *values, float factor, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] *= factor;
}

extern "C" hipError_t scale_all(float *values, float factor, int count) {
    scale<<<(count + 255) / 256, 256>>>(values, factor, count);
    return hipGetLastError();
}
