#include <cuda_runtime.h>

// A block of 16 x 16 threads computes 64 x 16 elements of c, a thread 4 of one column.
__global__ void matmul_kernel(const float* a, const float* b, float* c, int M, int N, int K) {
    __shared__ float ta[64][16], tb[16][16];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * 64 + 4 * y, column = blockIdx.x * 16 + x;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int k = 0; k < K; k += 16) {
        for (int r = 0; r < 4; r++) ta[4 * y + r][x] = row + r < M && k + x < K ? a[(row + r) * K + k + x] : 0.0f;
        tb[y][x] = k + y < K && column < N ? b[(k + y) * N + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16; i++) {
            float v = tb[i][x];  // once for four products
            for (int r = 0; r < 4; r++) sum[r] += ta[4 * y + r][i] * v;
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        if (row + r < M && column < N) c[(row + r) * N + column] = sum[r];
}

extern "C" void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    dim3 grid((N + 15) / 16, (M + 63) / 64), block(16, 16);
    matmul_kernel<<<grid, block>>>(a, b, c, M, N, K);
}
