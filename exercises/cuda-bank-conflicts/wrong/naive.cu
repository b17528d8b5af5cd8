#include <cuda_runtime.h>

__global__ void transpose_kernel(const float* x, float* y, int rows, int columns) {
    int column = blockIdx.x * 32 + threadIdx.x;
    for (int k = threadIdx.y; k < 32; k += 8) {
        int row = blockIdx.y * 32 + k;
        if (row < rows && column < columns) y[column * rows + row] = x[row * columns + column];
    }
}

extern "C" void transpose(const float* x, float* y, int rows, int columns) {
    dim3 grid((columns + 31) / 32, (rows + 31) / 32), block(32, 8);
    transpose_kernel<<<grid, block>>>(x, y, rows, columns);
}
