#include <cuda_runtime.h>

__global__ void matmul_kernel(const float* a, const float* b, float* c, int M, int N, int K) {
    __shared__ float ta[16][16], tb[16][16];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (int k = 0; k < K; k += 16) {
        ta[y][x] = row < M && k + x < K ? a[row * K + k + x] : 0.0f;
        tb[y][x] = k + y < K && column < N ? b[(k + y) * N + column] : 0.0f;
        __syncthreads();  // the tiles are whole
        for (int i = 0; i < 16; i++) sum += ta[y][i] * tb[i][x];
        __syncthreads();  // nobody reads them any more
    }
    if (row < M && column < N) c[row * N + column] = sum;
}

extern "C" void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    dim3 grid((N + 15) / 16, (M + 15) / 16), block(16, 16);
    matmul_kernel<<<grid, block>>>(a, b, c, M, N, K);
}
