// Bandwidth over a working set: each thread walks its own part of one buffer, `passes` times.
//
//   touch(result, buffer, bytes, threads)              every thread writes its own part first, so that the pages lie near it
//   read(result, buffer, bytes, passes, threads)       counts `bytes` a pass and thread
//   copy(...), copy_nt(...)                            first half to second half; counts bytes read + bytes written = `bytes`
//
// result is float64[2]: seconds, threads. `bytes` is per thread and a multiple of 8192; parts lie bytes + PAD apart.
#include "clock.hpp"

namespace {

constexpr int64_t VECTOR = sizeof(kw::vf);
constexpr int64_t UNROLL = 4;
constexpr int64_t PAD = 4096;

char* part(const kw::Tensor& buffer, int64_t bytes, int64_t ith) {
    auto base = (reinterpret_cast<uintptr_t>(buffer.data) + 4095) & ~uintptr_t{4095};
    return reinterpret_cast<char*>(base) + ith * (bytes + PAD);
}

inline kw::vu load(const char* p) { return kw::load_bits<kw::vu>(p); }

// An integer OR: no denormals, no rounding, and as many in a cycle as there are loads.
uint32_t read_once(const char* p, int64_t bytes) {
    kw::vu sum[UNROLL] = {};
    for (int64_t i = 0; i < bytes; i += UNROLL * VECTOR)
        for (int64_t j = 0; j < UNROLL; ++j) sum[j] |= load(p + i + j * VECTOR);
    for (int64_t j = 1; j < UNROLL; ++j) sum[0] |= sum[j];
    return sum[0][0];
}

struct Plain {
    static void store(char* p, kw::vu x) { __builtin_memcpy(p, &x, sizeof x); }
};

// Past the caches: no line is read before it is written.
struct Streaming {
    static void store(char* p, kw::vu x) {
#if defined(__AVX512F__)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)x);
#elif defined(__AVX2__)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)x);
#elif defined(__SSE2__)
        __builtin_ia32_movntps(reinterpret_cast<float*>(p), (kw::vf)x);
#else
        Plain::store(p, x);
#endif
    }
};

template <class Store>
void copy_once(char* to, const char* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 4 * VECTOR) {
        kw::vu a = load(from + i), b = load(from + i + VECTOR);
        kw::vu c = load(from + i + 2 * VECTOR), d = load(from + i + 3 * VECTOR);
        Store::store(to + i, a), Store::store(to + i + VECTOR, b);
        Store::store(to + i + 2 * VECTOR, c), Store::store(to + i + 3 * VECTOR, d);
    }
}

template <class Store>
void copy(kw::Args args) {
    kw::Tensor result = args.tensor(0), buffer = args.tensor(1);
    int64_t bytes = args.integer(2), passes = args.integer(3);
    kw::timed(result.ptr<double>(), args.integer(4), [&](int64_t ith, int64_t) {
        char* from = part(buffer, bytes, ith);
        char* to = from + bytes / 2;
        for (int64_t pass = 0; pass < passes; ++pass) {
            copy_once<Store>(to, from, bytes / 2);
            __asm__ volatile("" ::: "memory");
        }
    });
}

}  // namespace

KW_EXPORT(touch) {
    kw::Tensor result = args.tensor(0), buffer = args.tensor(1);
    int64_t bytes = args.integer(2);
    kw::timed(result.ptr<double>(), args.integer(3),
              [&](int64_t ith, int64_t) { std::memset(part(buffer, bytes, ith), 1, bytes + PAD); });
}

KW_EXPORT(read) {
    kw::Tensor result = args.tensor(0), buffer = args.tensor(1);
    int64_t bytes = args.integer(2), passes = args.integer(3);
    kw::timed(result.ptr<double>(), args.integer(4), [&](int64_t ith, int64_t) {
        const char* p = part(buffer, bytes, ith);
        for (int64_t pass = 0; pass < passes; ++pass) {
            uint32_t sum = read_once(p, bytes);
            __asm__ volatile("" : "+r"(sum)::"memory");
        }
    });
}

KW_EXPORT(copy) { copy<Plain>(args); }
KW_EXPORT(copy_nt) { copy<Streaming>(args); }
