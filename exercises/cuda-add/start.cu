#include <cuda_runtime.h>

// Runs once for each thread. Which element is this thread's?
__global__ void add_kernel(const float* x, const float* z, float* y, int n) {
}

// Runs on the CPU, and starts the kernel: <<<blocks, threads of each block>>>.
extern "C" void add(const float* x, const float* z, float* y, int n) {
    int threads = 256;
    int blocks = 1;  // enough for 256 elements
    add_kernel<<<blocks, threads>>>(x, z, y, n);
}
