#include <cuda_runtime.h>

// Right, and each element of x is read from the GPU's memory three times.
__global__ void window_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    float sum = x[i];
    if (i > 0) sum += x[i - 1];
    if (i + 1 < n) sum += x[i + 1];
    y[i] = sum;
}

extern "C" void window_sums(const float* x, float* y, int n) { window_kernel<<<(n + 127) / 128, 128>>>(x, y, n); }
