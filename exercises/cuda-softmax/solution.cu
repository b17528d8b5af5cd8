#include <cuda_runtime.h>

// One block for each row.
__global__ void softmax_kernel(const float* x, float* y, int columns) {
    __shared__ float s[128];
    int t = threadIdx.x;
    const float* row = x + blockIdx.x * columns;

    float most = -INFINITY;
    for (int c = t; c < columns; c += 128) most = fmaxf(most, row[c]);
    s[t] = most;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) s[t] = fmaxf(s[t], s[t + half]);
        __syncthreads();
    }
    most = s[0];
    __syncthreads();  // all have read it

    float sum = 0.0f;
    for (int c = t; c < columns; c += 128) sum += expf(row[c] - most);
    s[t] = sum;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    sum = s[0];
    for (int c = t; c < columns; c += 128) y[blockIdx.x * columns + c] = expf(row[c] - most) / sum;
}

extern "C" void softmax(const float* x, float* y, int rows, int columns) {
    softmax_kernel<<<rows, 128>>>(x, y, columns);
}
