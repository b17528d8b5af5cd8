#include <cuda_runtime.h>

// Every thread adds its products to y[0]. Does it come out right?
__global__ void dot_kernel(const float* x, const float* z, float* y, int n) {
    for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) y[0] += x[i] * z[i];
}

extern "C" void dot(const float* x, const float* z, float* y, int n) {
    dot_kernel<<<3, 128>>>(x, z, y, n);
}
