// Small CUDA programs of the kinds that public sample sets have, each with what it is there for: `// name: features`.
// All compute y from x, of n numbers, by `name(x, y, n)`; `test_emulated_programs.py` says what y must be. The emulator
// runs them under several orders of their threads, and must find nothing to say.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdio.h>

#include <vector>

namespace cg = cooperative_groups;

// vector_add: __global__, a grid of blocks, a guard
__global__ void vector_add_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + x[n - 1 - i];
}
void vector_add(const float* x, float* y, int n) { vector_add_k<<<(n + 255) / 256, 256>>>(x, y, n); }

// grid_stride: gridDim, a loop over the grid
__global__ void grid_stride_k(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = 2.0f * x[i];
}
void grid_stride(const float* x, float* y, int n) { grid_stride_k<<<3, 64>>>(x, y, n); }

// grid_of_two: dim3, two dimensions of blocks and threads
__global__ void grid_of_two_k(const float* x, float* y, int rows, int columns) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < rows && column < columns) y[row * columns + column] = x[column * rows + row];
}
void grid_of_two(const float* x, float* y, int n) {
    dim3 block(16, 8), grid((40 + 15) / 16, (n / 40 + 7) / 8);
    grid_of_two_k<<<grid, block>>>(x, y, n / 40, 40);
}

// transpose_tile: __shared__ of two dimensions with a pad, __syncthreads
__global__ void transpose_tile_k(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[16][17];
    int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
    __syncthreads();
    int to_row = blockIdx.x * 16 + threadIdx.y, to_column = blockIdx.y * 16 + threadIdx.x;
    if (to_row < columns && to_column < rows) y[to_row * rows + to_column] = tile[threadIdx.x][threadIdx.y];
}
void transpose_tile(const float* x, float* y, int n) {
    transpose_tile_k<<<dim3(3, (n / 40 + 15) / 16), dim3(16, 16)>>>(x, y, n / 40, 40);
}

// dynamic_shared: extern __shared__, its size in the launch
__global__ void dynamic_shared_k(const float* x, float* y, int n) {
    extern __shared__ float held[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    held[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = held[threadIdx.x ^ 1];
}
void dynamic_shared(const float* x, float* y, int n) {
    cudaFuncSetAttribute(dynamic_shared_k, cudaFuncAttributeMaxDynamicSharedMemorySize, 128 * sizeof(float));
    dynamic_shared_k<<<(n + 127) / 128, 128, 128 * sizeof(float)>>>(x, y, n);
}

// constant_memory: __constant__, cudaMemcpyToSymbol
__constant__ float weights[3];
__global__ void constant_memory_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float left = i ? x[i - 1] : 0.0f, right = i + 1 < n ? x[i + 1] : 0.0f;
    y[i] = weights[0] * left + weights[1] * x[i] + weights[2] * right;
}
void constant_memory(const float* x, float* y, int n) {
    float given[3] = {0.25f, 0.5f, 0.25f};
    cudaMemcpyToSymbol(weights, given, sizeof(given));
    constant_memory_k<<<(n + 255) / 256, 256>>>(x, y, n);
}

// stencil_halo: shared memory with a halo that some threads load
__global__ void stencil_halo_k(const float* x, float* y, int n) {
    __shared__ float part[128 + 2];
    int i = blockIdx.x * 128 + threadIdx.x, t = threadIdx.x;
    part[t + 1] = i < n ? x[i] : 0.0f;
    if (t == 0) part[0] = i ? x[i - 1] : 0.0f;
    if (t == 127) part[129] = i + 1 < n ? x[i + 1] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = part[t] - 2.0f * part[t + 1] + part[t + 2];
}
void stencil_halo(const float* x, float* y, int n) { stencil_halo_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// block_sum: a tree in shared memory, several launches, memory of the host's own by cudaMalloc
__global__ void block_sum_k(const float* x, float* sums, int n) {
    __shared__ float part[256];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    part[t] = i < n ? x[i] : 0.0f;
    for (int step = 128; step > 0; step /= 2) {
        __syncthreads();
        if (t < step) part[t] += part[t + step];
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}
__global__ void fill_k(const float* sum, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = *sum;
}
void block_sum(const float* x, float* y, int n) {
    int blocks = (n + 255) / 256;
    float *sums, *sum;
    if (cudaMalloc(&sums, blocks * sizeof(float)) != cudaSuccess || cudaMalloc(&sum, sizeof(float)) != cudaSuccess) return;
    block_sum_k<<<blocks, 256>>>(x, sums, n);
    block_sum_k<<<1, 256>>>(sums, sum, blocks);
    fill_k<<<blocks, 256>>>(sum, y, n);
    cudaFree(sums);
    cudaFree(sum);
}

// warp_sum: __shfl_down_sync, a warp's sum
__global__ void warp_sum_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    for (int step = 16; step > 0; step /= 2) v += __shfl_down_sync(0xffffffffu, v, step);
    v = __shfl_sync(0xffffffffu, v, 0);
    if (i < n) y[i] = v;
}
void warp_sum(const float* x, float* y, int n) { warp_sum_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// warp_scan: __shfl_up_sync, an inclusive scan of each warp
__global__ void warp_scan_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    float v = i < n ? x[i] : 0.0f;
    for (int step = 1; step < 32; step *= 2) {
        float other = __shfl_up_sync(0xffffffffu, v, step);
        if (lane >= step) v += other;
    }
    if (i < n) y[i] = v;
}
void warp_scan(const float* x, float* y, int n) { warp_scan_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// warp_votes: __ballot_sync, __any_sync, __all_sync, __popc, __ffs
__global__ void warp_votes_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool positive = i < n && x[i] > 0.0f;
    unsigned votes = __ballot_sync(0xffffffffu, positive);
    int any = __any_sync(0xffffffffu, positive), all = __all_sync(0xffffffffu, positive);
    if (i < n) y[i] = float(__popc(votes)) + 100.0f * any + 1000.0f * all + 10000.0f * __ffs(int(votes));
}
void warp_votes(const float* x, float* y, int n) { warp_votes_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// warp_match: __match_any_sync, __reduce_add_sync
__global__ void warp_match_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int kind = i < n ? int(fabsf(x[i])) : -1;
    unsigned alike = __match_any_sync(0xffffffffu, kind);
    int sum = __reduce_add_sync(0xffffffffu, kind);
    if (i < n) y[i] = float(__popc(alike)) + 100.0f * sum;
}
void warp_match(const float* x, float* y, int n) { warp_match_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// histogram: atomicAdd on shared and on global memory
__global__ void histogram_k(const float* x, unsigned* bins, int n) {
    __shared__ unsigned mine[16];
    if (threadIdx.x < 16) mine[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&mine[min(15, max(0, int(4.0f * x[i]) + 8))], 1u);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], mine[threadIdx.x]);
}
__global__ void counts_k(const unsigned* bins, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = float(bins[i % 16]);
}
void histogram(const float* x, float* y, int n) {
    unsigned* bins;
    cudaMalloc(&bins, 16 * sizeof(unsigned));
    cudaMemset(bins, 0, 16 * sizeof(unsigned));
    histogram_k<<<3, 128>>>(x, bins, n);
    counts_k<<<(n + 127) / 128, 128>>>(bins, y, n);
    cudaFree(bins);
}

// atomics: atomicMin, atomicMax, atomicExch, atomicCAS in a loop, atomicInc, atomicOr, on signed and 64-bit numbers
__device__ float atomic_largest(float* address, float v) {
    int* whole = reinterpret_cast<int*>(address);
    int old = atomicAdd(whole, 0), assumed;
    do {
        assumed = old;
        if (__int_as_float(assumed) >= v) break;
        old = atomicCAS(whole, assumed, __float_as_int(v));
    } while (old != assumed);
    return __int_as_float(old);
}
struct Extremes {
    float largest;
    int least, most;
    unsigned turns, bits;
    unsigned long long sum;
};
__global__ void atomics_k(const float* x, Extremes* found, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomic_largest(&found->largest, x[i]);
    atomicMin(&found->least, int(100.0f * x[i]));
    atomicMax(&found->most, int(100.0f * x[i]));
    atomicInc(&found->turns, 6u);
    atomicOr(&found->bits, 1u << (i % 20));
    atomicAdd(&found->sum, (unsigned long long)i);
}
__global__ void extremes_k(const Extremes* found, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float all[6] = {found->largest, float(found->least), float(found->most), float(found->turns), float(found->bits),
                    float(found->sum)};
    if (i < n) y[i] = all[i % 6];
}
void atomics(const float* x, float* y, int n) {
    Extremes begin = {-1e30f, 1000000, -1000000, 0, 0, 0}, *found;
    cudaMalloc(&found, sizeof(Extremes));
    cudaMemcpy(found, &begin, sizeof(Extremes), cudaMemcpyHostToDevice);
    atomics_k<<<(n + 127) / 128, 128>>>(x, found, n);
    extremes_k<<<(n + 127) / 128, 128>>>(found, y, n);
    cudaFree(found);
}

// last_block: __threadfence, a ticket by atomicInc, __device__ variables
__device__ unsigned tickets;
__device__ float partial[64];
__global__ void last_block_k(const float* x, float* y, int n) {
    __shared__ bool last;
    __shared__ float sum;
    if (threadIdx.x == 0) {
        float mine = 0.0f;
        for (int k = 0; k < 64 && blockIdx.x * 64 + k < n; k++) mine += x[blockIdx.x * 64 + k];
        partial[blockIdx.x] = mine;
        __threadfence();
        last = atomicInc(&tickets, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) {
        sum = 0.0f;
        for (unsigned b = 0; b < gridDim.x; b++) sum += partial[b];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = sum;
}
void last_block(const float* x, float* y, int n) { last_block_k<<<(n + 63) / 64, 64>>>(x, y, n); }

// templates: a templated kernel with a type and a number, a functor, if constexpr
struct Twice {
    __device__ float operator()(float v) const { return 2.0f * v; }
};
template <typename T, int STEP, class F>
__global__ void templates_k(const T* x, T* y, int n, F f) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * STEP;
#pragma unroll
    for (int k = 0; k < STEP; k++)
        if (i + k < n) {
            if constexpr (STEP > 2) y[i + k] = f(x[i + k]);
            else y[i + k] = x[i + k];
        }
}
void templates(const float* x, float* y, int n) { templates_k<float, 4><<<(n + 511) / 512, 128>>>(x, y, n, Twice{}); }

// device_functions: __device__, __host__ __device__, __noinline__, recursion, a function pointer
__device__ __noinline__ int gcd_of(int a, int b) { return b ? gcd_of(b, a % b) : a; }
__host__ __device__ float scaled(float v, int by) { return v * by; }
typedef float (*Binary)(float, int);
__global__ void device_functions_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    Binary of = scaled;
    if (i < n) y[i] = of(x[i], gcd_of(i + 12, 12));
}
void device_functions(const float* x, float* y, int n) { device_functions_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// vector_types: float4, float2, make_float4, loads of 16 bytes
__global__ void vector_types_k(const float4* x, float4* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 v = x[i];
        y[i] = make_float4(v.w, v.z, v.y, v.x);
    }
}
void vector_types(const float* x, float* y, int n) {
    vector_types_k<<<(n / 4 + 63) / 64, 64>>>((const float4*)x, (float4*)y, n / 4);
}

// half_numbers: cuda_fp16.h, __half arithmetic by way of float
__global__ void half_numbers_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __half2float(__float2half(x[i]));
}
void half_numbers(const float* x, float* y, int n) { half_numbers_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// half_arithmetic: __hadd, __hmul, __hfma, __half2, operators of half
__global__ void half_arithmetic_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    half a = __float2half(x[i]), b = __float2half(0.5f);
    __half2 pair = __halves2half2(a, b);
    pair = __hadd2(pair, __float2half2_rn(1.0f));
    half sum = __hadd(__hmul(a, b), __low2half(pair)) + a * b;
    y[i] = __half2float(__hfma(sum, b, __high2half(pair)));
}
void half_arithmetic(const float* x, float* y, int n) { half_arithmetic_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// integer_intrinsics: __clz, __brev, __popcll, __mul24, __byte_perm, __funnelshift_l, __umulhi, __dp4a
__global__ void integer_intrinsics_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = 2654435761u * (i + 1);
    unsigned found = __clz(int(v >> 5)) ^ __brev(v) ^ unsigned(__popcll(v * 4294967297ull)) ^ unsigned(__mul24(i, 77));
    found ^= __byte_perm(v, ~v, 0x3715) ^ __funnelshift_l(v, i, 9) ^ __umulhi(v, 12345u);
    found ^= unsigned(__clzll(v)) ^ unsigned(__ffsll(v)) ^ unsigned(__dp4a(int(v), 0x01020304, 5));
    y[i] = float(found % 1000);
}
void integer_intrinsics(const float* x, float* y, int n) { integer_intrinsics_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// math_functions: expf, rsqrtf, sincosf, fmaf, __expf, fast division, powf, erff, double precision
__global__ void math_functions_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s, c, v = fabsf(x[i]) + 1.0f;
    sincosf(v, &s, &c);
    double wide = cbrt(double(v)) + atan2(double(v), 2.0);
    y[i] = s * s + c * c + __expf(-v) + rsqrtf(v) + __fdividef(v, 3.0f) + fmaf(v, 2.0f, powf(v, 0.5f)) + erff(v) +
           float(wide) + hypotf(v, 1.0f) + log1pf(v) + fmodf(v, 1.0f) + copysignf(1.0f, x[i]) + float(isnan(v));
}
void math_functions(const float* x, float* y, int n) { math_functions_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// streams: cudaStreamCreate, copies and launches in two streams, cudaStreamSynchronize
void streams(const float* x, float* y, int n) {
    cudaStream_t both[2];
    for (cudaStream_t& stream : both) cudaStreamCreate(&stream);
    int half = n / 2;
    for (int k = 0; k < 2; k++) {
        int first = k * half, count = k ? n - half : half;
        grid_stride_k<<<2, 64, 0, both[k]>>>(x + first, y + first, count);
    }
    for (cudaStream_t stream : both) {
        cudaStreamSynchronize(stream);
        cudaStreamDestroy(stream);
    }
}

// events: cudaEventRecord, cudaStreamWaitEvent, cudaEventElapsedTime
void events(const float* x, float* y, int n) {
    cudaStream_t stream;
    cudaEvent_t begin, end, untimed;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming);
    cudaEventRecord(begin, stream);
    vector_add_k<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
    cudaEventRecord(end, stream);
    cudaEventRecord(untimed, stream);
    cudaStreamWaitEvent(0, untimed, 0);
    cudaEventSynchronize(end);
    float took = -1.0f;
    cudaEventElapsedTime(&took, begin, end);
    if (took < 0.0f || cudaEventQuery(end) != cudaSuccess) cudaMemset(y, 0, sizeof(float));
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaEventDestroy(untimed);
    cudaStreamDestroy(stream);
}

// host_memory: cudaMallocHost, cudaMemcpyAsync to the host and back, cudaHostAlloc
void host_memory(const float* x, float* y, int n) {
    float *pinned, *device;
    cudaMallocHost(&pinned, n * sizeof(float));
    cudaMalloc(&device, n * sizeof(float));
    cudaMemcpy(pinned, x, n * sizeof(float), cudaMemcpyDeviceToHost);
    for (int i = 0; i < n; i++) pinned[i] += 1.0f;
    cudaMemcpyAsync(device, pinned, n * sizeof(float), cudaMemcpyHostToDevice, 0);
    grid_stride_k<<<3, 64>>>(device, y, n);
    cudaFreeHost(pinned);
    cudaFree(device);
}

// managed_memory: cudaMallocManaged, which host and kernel use in turns; cudaMemPrefetchAsync
__global__ void managed_memory_k(float* held, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) held[i] *= 3.0f;
}
void managed_memory(const float* x, float* y, int n) {
    float* held;
    cudaMallocManaged(&held, n * sizeof(float));
    for (int i = 0; i < n; i++) held[i] = float(i);
    managed_memory_k<<<(n + 127) / 128, 128>>>(held, n);
    cudaDeviceSynchronize();
    std::vector<float> copy(held, held + n);
    for (float& v : copy) v += 1.0f;
    cudaMemcpy(y, copy.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    cudaFree(held);
}

// pitched_memory: cudaMallocPitch, cudaMemcpy2D
__global__ void pitched_memory_k(const float* rows, size_t pitch, float* y, int height, int width) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    const float* line = (const float*)((const char*)rows + row * pitch);
    if (column < width && row < height) y[row * width + column] = line[width - 1 - column];
}
void pitched_memory(const float* x, float* y, int n) {
    float* rows;
    size_t pitch;
    int width = 40, height = n / 40;
    cudaMallocPitch(&rows, &pitch, width * sizeof(float), height);
    cudaMemcpy2D(rows, pitch, x, width * sizeof(float), width * sizeof(float), height, cudaMemcpyDeviceToDevice);
    pitched_memory_k<<<dim3(2, height), 32>>>(rows, pitch, y, height, width);
    cudaFree(rows);
}

// stream_ordered_memory: cudaMallocAsync, cudaFreeAsync, cudaMemsetAsync
void stream_ordered_memory(const float* x, float* y, int n) {
    float* held;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaMallocAsync(&held, n * sizeof(float), stream);
    cudaMemsetAsync(held, 0, n * sizeof(float), stream);
    grid_stride_k<<<3, 64, 0, stream>>>(x, held, n);
    grid_stride_k<<<3, 64, 0, stream>>>(held, y, n);
    cudaFreeAsync(held, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
}

// device_query: cudaGetDeviceProperties, cudaGetDeviceCount, cudaDeviceGetAttribute, cudaOccupancyMaxPotentialBlockSize
void device_query(const float* x, float* y, int n) {
    int devices = 0, threads = 0, blocks = 0, attribute = 0;
    cudaDeviceProp properties;
    cudaGetDeviceCount(&devices);
    cudaSetDevice(0);
    cudaGetDeviceProperties(&properties, 0);
    cudaDeviceGetAttribute(&attribute, cudaDevAttrWarpSize, 0);
    cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, vector_add_k, 0, 0);
    if (devices != 1 || properties.warpSize != attribute || threads > properties.maxThreadsPerBlock) return;
    vector_add_k<<<(n + threads - 1) / threads, threads>>>(x, y, n);
    printf("%s has %d multiprocessors\n", properties.name, properties.multiProcessorCount);
}

// error_handling: cudaGetLastError, cudaGetErrorString, a launch that is refused
void error_handling(const float* x, float* y, int n) {
    vector_add_k<<<(n + 255) / 256, 256>>>(x, y, n);
    cudaError_t found = cudaGetLastError();
    if (found != cudaSuccess) printf("%s: %s\n", cudaGetErrorName(found), cudaGetErrorString(found));
    found = cudaDeviceSynchronize();
    if (found != cudaSuccess) cudaMemset(y, 0, n * sizeof(float));
    cudaDeviceReset();
}

// block_group: cooperative groups, this_thread_block, sync, thread_rank, size
__global__ void block_group_k(const float* x, float* y, int n) {
    __shared__ float part[128];
    cg::thread_block block = cg::this_thread_block();
    int i = blockIdx.x * block.size() + block.thread_rank();
    part[block.thread_rank()] = i < n ? x[i] : 0.0f;
    block.sync();
    if (i < n) y[i] = part[block.size() - 1 - block.thread_rank()];
    cg::sync(block);
}
void block_group(const float* x, float* y, int n) { block_group_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// tile_group: cooperative groups, tiled_partition<16>, shfl_down, shfl, any, ballot
template <unsigned size>
__device__ float sum_of(cg::thread_block_tile<size> tile, float v) {
    for (int step = tile.size() / 2; step > 0; step /= 2) v += tile.shfl_down(v, step);
    return tile.shfl(v, 0);
}
__global__ void tile_group_k(const float* x, float* y, int n) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = sum_of(tile, i < n ? x[i] : 0.0f);
    bool full = tile.all(i < n);
    if (i < n) y[i] = sum + 100.0f * full + 1000.0f * tile.meta_group_rank();
    tile.sync();
}
void tile_group(const float* x, float* y, int n) { tile_group_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// group_reduce: cooperative groups' reduce and inclusive_scan with plus and greater
__global__ void group_reduce_k(const float* x, float* y, int n) {
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : -100.0f;
    float largest = cg::reduce(tile, v, cg::greater<float>());
    int count = cg::inclusive_scan(tile, int(v > 0.0f), cg::plus<int>());
    if (i < n) y[i] = largest + 10.0f * count;
}
void group_reduce(const float* x, float* y, int n) { group_reduce_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// textures: cudaTextureObject_t over linear memory, tex1Dfetch
__global__ void textures_k(cudaTextureObject_t texture, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = tex1Dfetch<float>(texture, n - 1 - i);
}
void textures(const float* x, float* y, int n) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = const_cast<float*>(x);
    resource.res.linear.desc = cudaCreateChannelDesc<float>();
    resource.res.linear.sizeInBytes = n * sizeof(float);
    cudaTextureDesc how = {};
    how.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture = 0;
    cudaCreateTextureObject(&texture, &resource, &how, nullptr);
    textures_k<<<(n + 127) / 128, 128>>>(texture, y, n);
    cudaDestroyTextureObject(texture);
}

// texture_of_two: a CUDA array, cudaMemcpy2DToArray, tex2D with linear filtering and clamping
__global__ void texture_of_two_k(cudaTextureObject_t texture, float* y, int height, int width) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column < width) y[row * width + column] = tex2D<float>(texture, column + 1.0f, row + 0.5f);
}
void texture_of_two(const float* x, float* y, int n) {
    int width = 40, height = n / 40;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    cudaMallocArray(&array, &format, width, height);
    cudaMemcpy2DToArray(array, 0, 0, x, width * sizeof(float), width * sizeof(float), height, cudaMemcpyDeviceToDevice);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc how = {};
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    how.filterMode = cudaFilterModeLinear;
    cudaTextureObject_t texture;
    cudaCreateTextureObject(&texture, &resource, &how, nullptr);
    texture_of_two_k<<<dim3(2, height), 32>>>(texture, y, height, width);
    cudaDestroyTextureObject(texture);
    cudaFreeArray(array);
}

// device_assert: assert in a kernel, printf from a thread, clock64
#include <assert.h>
__global__ void device_assert_k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    long long begin = clock64();
    assert(n > 0);
    if (i == 0) printf("thread %d of block %d\n", threadIdx.x, blockIdx.x);
    if (i < n) y[i] = clock64() >= begin ? x[i] : 0.0f;
}
void device_assert(const float* x, float* y, int n) { device_assert_k<<<(n + 127) / 128, 128>>>(x, y, n); }

// product: a tiled matrix product, unrolled loops, __restrict__, __launch_bounds__
template <int TILE>
__global__ void __launch_bounds__(TILE* TILE) product_k(const float* __restrict__ a, float* __restrict__ c, int side) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < side; k += TILE) {
        left[threadIdx.y][threadIdx.x] = row < side && k + threadIdx.x < side ? a[row * side + k + threadIdx.x] : 0.0f;
        right[threadIdx.y][threadIdx.x] = k + threadIdx.y < side && column < side ? a[(k + threadIdx.y) * side + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < TILE; j++) sum += left[threadIdx.y][j] * right[j][threadIdx.x];
        __syncthreads();
    }
    if (row < side && column < side) c[row * side + column] = sum;
}
void product(const float* x, float* y, int n) { product_k<8><<<dim3(4, 4), dim3(8, 8)>>>(x, y, 30); }

// bitonic_sort: steps with barriers between, in shared memory
__global__ void bitonic_sort_k(const float* x, float* y) {
    __shared__ float held[256];
    int t = threadIdx.x;
    held[t] = x[t];
    for (int size = 2; size <= 256; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            int other = t ^ step;
            if (other > t && (held[t] > held[other]) == !(t & size)) {
                float kept = held[t];
                held[t] = held[other];
                held[other] = kept;
            }
        }
    __syncthreads();
    y[t] = held[t];
}
void bitonic_sort(const float* x, float* y, int n) { bitonic_sort_k<<<1, 256>>>(x, y); }

// breadth_first: launches in a loop of the host until a flag in memory says that nothing changed
__global__ void breadth_first_k(int* level, int now, int* changed, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || atomicAdd(&level[i], 0) != now) return;
    for (int next : {2 * i + 1, 2 * i + 2})
        if (next < n && atomicCAS(&level[next], -1, now + 1) == -1) atomicExch(changed, 1);
}
__global__ void levels_k(const int* level, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = float(level[i]);
}
void breadth_first(const float* x, float* y, int n) {
    int *level, *changed, more = 1;
    cudaMalloc((void**)&level, n * sizeof(int));
    cudaMalloc((void**)&changed, sizeof(int));
    std::vector<int> begin(n, -1);
    begin[0] = 0;
    cudaMemcpy(level, begin.data(), n * sizeof(int), cudaMemcpyHostToDevice);
    for (int now = 0; more; now++) {
        more = 0;
        cudaMemcpy(changed, &more, sizeof(int), cudaMemcpyHostToDevice);
        breadth_first_k<<<(n + 127) / 128, 128>>>(level, now, changed, n);
        cudaMemcpy(&more, changed, sizeof(int), cudaMemcpyDeviceToHost);
    }
    levels_k<<<(n + 127) / 128, 128>>>(level, y, n);
    cudaFree(level);
    cudaFree(changed);
}
