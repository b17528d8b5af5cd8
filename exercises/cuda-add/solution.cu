#include <cuda_runtime.h>

__global__ void add_kernel(const float* x, const float* z, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + z[i];
}

extern "C" void add(const float* x, const float* z, float* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    add_kernel<<<blocks, threads>>>(x, z, y, n);
}
