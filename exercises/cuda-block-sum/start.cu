#include <cuda_runtime.h>

// y[b] is the sum of the 256 elements of block b. Here one thread of the block does it all.
__global__ void sum_kernel(const float* x, float* y, int n) {
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int i = blockIdx.x * 256; i < n && i < blockIdx.x * 256 + 256; i++) sum += x[i];
        y[blockIdx.x] = sum;
    }
}

extern "C" void block_sums(const float* x, float* y, int n, int blocks) { sum_kernel<<<blocks, 256>>>(x, y, n); }
