#include <cuda_runtime.h>

__global__ void window_kernel(const float* x, float* y, int n) {
    __shared__ float s[130];  // a neighbour at either end
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    s[t + 1] = i < n ? x[i] : 0.0f;
    if (t == 0) s[0] = i > 0 ? x[i - 1] : 0.0f;
    if (t == 127) s[129] = i + 1 < n ? x[i + 1] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = s[t] + s[t + 1] + s[t + 2];
}

extern "C" void window_sums(const float* x, float* y, int n) { window_kernel<<<(n + 127) / 128, 128>>>(x, y, n); }
