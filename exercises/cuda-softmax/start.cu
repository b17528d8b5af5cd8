#include <cuda_runtime.h>

// One block of 128 threads for each row.
__global__ void softmax_kernel(const float* x, float* y, int columns) {
    __shared__ float s[128];
    int t = threadIdx.x;
    const float* row = x + blockIdx.x * columns;

    // 1. the largest element of the row
    // 2. the sum of exp(row[c] - largest)
    // 3. y[blockIdx.x * columns + c] = exp(row[c] - largest) / sum
}

extern "C" void softmax(const float* x, float* y, int rows, int columns) {
    softmax_kernel<<<rows, 128>>>(x, y, columns);
}
