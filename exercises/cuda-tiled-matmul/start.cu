#include <cuda_runtime.h>

__global__ void matmul_kernel(const float* a, const float* b, float* c, int M, int N, int K) {
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; k++) sum += a[row * K + k] * b[k * N + column];
    c[row * N + column] = sum;
}

extern "C" void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    dim3 grid((N + 15) / 16, (M + 15) / 16), block(16, 16);
    matmul_kernel<<<grid, block>>>(a, b, c, M, N, K);
}
