#include <cuda_runtime.h>

// One block, a thread for each element: n is at most 256. Here each thread adds all that is before it.
__global__ void prefix_kernel(const float* x, float* y, int n) {
    int t = threadIdx.x;
    if (t >= n) return;
    float sum = 0.0f;
    for (int i = 0; i <= t; i++) sum += x[i];
    y[t] = sum;
}

extern "C" void prefix_sum(const float* x, float* y, int n) { prefix_kernel<<<1, 256>>>(x, y, n); }
