// The host's side of CUDA beyond launches and plain copies: streams, events, pinned, managed and pitched memory, what is
// asked of the device. Whatever is queued is done at once, in the order of the source: streams never run side by side.
#pragma once

extern "C" void* kw_allocate_shared(kw_size bytes);  // memory that host code and kernels both use

inline const char* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }

// ---------------------------------------------------------------- streams and events

enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
typedef struct kw_event { bool recorded; }* cudaEvent_t;
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = new char, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return cudaStreamCreate(stream); }
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete static_cast<char*>(stream), cudaSuccess; }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new kw_event{false}, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) { return event->recorded = true, cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
// There is no time here.
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0.0f, cudaSuccess; }

// ---------------------------------------------------------------- memory

enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaHostAllocWriteCombined = 4 };
enum { cudaMemAttachGlobal = 1, cudaMemAttachHost = 2 };
enum { cudaCpuDeviceId = -1 };
template <class T> cudaError_t cudaMallocHost(T** address, kw_size bytes, unsigned = 0) {
    return *address = static_cast<T*>(kw_allocate_shared(bytes)), cudaSuccess;
}
template <class T> cudaError_t cudaHostAlloc(T** address, kw_size bytes, unsigned) { return cudaMallocHost(address, bytes); }
template <class T> cudaError_t cudaMallocManaged(T** address, kw_size bytes, unsigned = cudaMemAttachGlobal) {
    return cudaMallocHost(address, bytes);
}
template <class T> cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned) {
    return *device = static_cast<T*>(host), cudaSuccess;
}
template <class T> cudaError_t cudaMallocAsync(T** address, kw_size bytes, cudaStream_t) { return cudaMalloc(address, bytes); }
inline cudaError_t cudaFreeHost(void* address) { return cudaFree(address); }
inline cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
inline cudaError_t cudaMemPrefetchAsync(const void*, kw_size, int, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaMemGetInfo(kw_size* free, kw_size* total) { return *free = *total = kw_size(1) << 30, cudaSuccess; }

template <class T> cudaError_t cudaMallocPitch(T** address, kw_size* pitch, kw_size width, kw_size height) {
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(address, *pitch * height);
}
inline cudaError_t cudaMemcpy2D(void* to, kw_size to_pitch, const void* from, kw_size from_pitch, kw_size width,
                                kw_size height, cudaMemcpyKind) {
    for (kw_size row = 0; row < height; row++)
        kw_copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, kw_size to_pitch, const void* from, kw_size from_pitch, kw_size width,
                                     kw_size height, cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
inline cudaError_t cudaMemset2D(void* to, kw_size pitch, int value, kw_size width, kw_size height) {
    for (kw_size row = 0; row < height; row++) kw_fill(static_cast<char*>(to) + row * pitch, value, width);
    return cudaSuccess;
}
template <class T> cudaError_t cudaGetSymbolAddress(void** address, T& symbol) { return *address = &symbol, cudaSuccess; }

// ---------------------------------------------------------------- what is asked of the device

struct cudaDeviceProp {
    char name[256] = "the emulator";
    kw_size totalGlobalMem = kw_size(1) << 30, sharedMemPerBlock = 48 * 1024, sharedMemPerBlockOptin = 227 * 1024,
            sharedMemPerMultiprocessor = 228 * 1024, totalConstMem = 64 * 1024;
    int major = 9, minor = 0, multiProcessorCount = 132, warpSize = 32, maxThreadsPerBlock = 1024,
        maxThreadsPerMultiProcessor = 2048, regsPerBlock = 65536, l2CacheSize = 50 << 20, clockRate = 1755000,
        maxThreadsDim[3] = {1024, 1024, 64}, maxGridSize[3] = {2147483647, 65535, 65535}, canMapHostMemory = 1,
        managedMemory = 1, concurrentManagedAccess = 1, unifiedAddressing = 1, concurrentKernels = 1,
        cooperativeLaunch = 0, asyncEngineCount = 0, memoryClockRate = 0, memoryBusWidth = 0, computeMode = 0;
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMaxSharedMemoryPerBlock = 8, cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16, cudaDevAttrMaxThreadsPerMultiProcessor = 39, cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrCooperativeLaunch = 95, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) { return *found = cudaDeviceProp(), cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
    cudaDeviceProp p;
    *value = which == cudaDevAttrMaxThreadsPerBlock ? p.maxThreadsPerBlock
        : which == cudaDevAttrMaxSharedMemoryPerBlock ? int(p.sharedMemPerBlock)
        : which == cudaDevAttrMaxSharedMemoryPerBlockOptin ? int(p.sharedMemPerBlockOptin)
        : which == cudaDevAttrWarpSize ? p.warpSize
        : which == cudaDevAttrMultiProcessorCount ? p.multiProcessorCount
        : which == cudaDevAttrMaxThreadsPerMultiProcessor ? p.maxThreadsPerMultiProcessor
        : which == cudaDevAttrComputeCapabilityMajor ? p.major : 0;
    return cudaSuccess;
}
template <class F>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* blocks, int* threads, F, kw_size = 0, int most = 0) {
    return *blocks = 132, *threads = most ? most : 256, cudaSuccess;
}
template <class F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F, int threads, kw_size) {
    return *blocks = 2048 / threads, cudaSuccess;
}
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
template <class F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
