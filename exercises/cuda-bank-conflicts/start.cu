#include <cuda_runtime.h>

__global__ void transpose_kernel(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[32][32];
    int column = blockIdx.x * 32 + threadIdx.x;
    for (int k = threadIdx.y; k < 32; k += 8) {
        int row = blockIdx.y * 32 + k;
        if (row < rows && column < columns) tile[k][threadIdx.x] = x[row * columns + column];
    }
    __syncthreads();
    int row = blockIdx.y * 32 + threadIdx.x;
    for (int k = threadIdx.y; k < 32; k += 8) {
        int out = blockIdx.x * 32 + k;
        if (row < rows && out < columns) y[out * rows + row] = tile[threadIdx.x][k];
    }
}

extern "C" void transpose(const float* x, float* y, int rows, int columns) {
    dim3 grid((columns + 31) / 32, (rows + 31) / 32), block(32, 8);
    transpose_kernel<<<grid, block>>>(x, y, rows, columns);
}
