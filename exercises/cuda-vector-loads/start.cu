#include <cuda_runtime.h>

// Each thread has four neighbouring elements, and reads them one by one.
__global__ void scale_kernel(const float* x, float a, float* y, int n) {
    int i = 4 * (blockIdx.x * 128 + threadIdx.x);
    for (int k = i; k < i + 4 && k < n; k++) y[k] = a * x[k];
}

extern "C" void scale(const float* x, float a, float* y, int n) {
    scale_kernel<<<(n + 511) / 512, 128>>>(x, a, y, n);
}
