// clip_grads_, one source for vectors of any width and, for the plain target, one element after another. Squares are
// summed in float64, by chunks of CHUNK elements and these in their order: no result hangs on the number of threads.
#include <cstdlib>

#include "step.hpp"

namespace {

constexpr int64_t CHUNK = 8192;  // elements, a multiple of step.hpp's BLOCK

struct Sum {
    double squares = 0.0, largest = 0.0;
    bool nan = false;
};

#if KW_VECTORS
#if defined(__AVX512F__)
using Wide = __m512d;
inline Wide lower(kw::vf x) { return _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)); }
inline Wide upper(kw::vf x) {
    return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)x), 1)));
}
inline Wide square_add(Wide sum, Wide x) { return _mm512_fmadd_pd(x, x, sum); }
inline Wide zero() { return _mm512_setzero_pd(); }
inline Wide both(Wide a, Wide b) { return _mm512_add_pd(a, b); }
#else
using Wide = __m256d;
inline Wide lower(kw::vf x) { return _mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)); }
inline Wide upper(kw::vf x) { return _mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1)); }
inline Wide square_add(Wide sum, Wide x) { return _mm256_fmadd_pd(x, x, sum); }
inline Wide zero() { return _mm256_setzero_pd(); }
inline Wide both(Wide a, Wide b) { return _mm256_add_pd(a, b); }
#endif

inline double total(Wide x) {
    alignas(64) double lanes[sizeof(Wide) / 8];
    std::memcpy(lanes, &x, sizeof x);
    double sum = 0.0;
    for (double lane : lanes) sum += lane;
    return sum;
}

template <class T>
void add_squares(Sum& sum, const T* p, int64_t n) {
    Wide a = zero(), b = zero();
    int64_t i = 0;
    for (; i + kw::LANES <= n; i += kw::LANES) {
        const kw::vf x = kw::load(p + i);
        a = square_add(a, lower(x));
        b = square_add(b, upper(x));
    }
    if (i < n) {
        const kw::vf x = kw::load(p + i, static_cast<int>(n - i));
        a = square_add(a, lower(x));
        b = square_add(b, upper(x));
    }
    sum.squares += total(both(a, b));
}

template <class T>
void add_largest(Sum& sum, const T* p, int64_t n) {
    kw::vf most{};
    kw::vi nans{};
    auto several = [&](kw::vf x) {
        most = kw::max(kw::abs(x), most);  // which passes over a NaN
        nans |= x != x;
    };
    int64_t i = 0;
    for (; i + kw::LANES <= n; i += kw::LANES) several(kw::load(p + i));
    if (i < n) several(kw::load(p + i, static_cast<int>(n - i)));
    for (int k = 0; k < kw::LANES; ++k) sum.nan = sum.nan || nans[k];
    const double found = static_cast<double>(kw::reduce_max(most));
    if (found > sum.largest) sum.largest = found;
}

template <class T>
void add(Sum& sum, const T* p, int64_t n, bool largest) {
    if (largest) {
        add_largest(sum, p, n);
    } else {
        add_squares(sum, p, n);
    }
}

template <class T>
void scale(T* p, int64_t n, float by) {
    int64_t i = 0;
    for (; i + kw::LANES <= n; i += kw::LANES) kw::store(p + i, kw::load(p + i) * by);
    if (i < n) kw::store(p + i, kw::load(p + i, static_cast<int>(n - i)) * by, static_cast<int>(n - i));
}
#else
template <class T>
void add(Sum& sum, const T* p, int64_t n, bool) {
    for (int64_t i = 0; i < n; ++i) {
        const double x = static_cast<double>(kw::to_float(p[i]));
        sum.squares += x * x;
        sum.largest = std::fabs(x) > sum.largest ? std::fabs(x) : sum.largest;
        sum.nan = sum.nan || x != x;
    }
}
template <class T>
void scale(T* p, int64_t n, float by) {
    for (int64_t i = 0; i < n; ++i) p[i] = kw::from_float<T>(kw::to_float(p[i]) * by);
}
#endif

int64_t chunks_of(const kw::Tensor& t) { return (t.numel() + CHUNK - 1) / CHUNK; }

// The sums of all chunks, in their order.
Sum sum_of(const kw::Lists& lists, int64_t threads, bool largest) {
    int64_t chunks = 0, bytes = 0;
    for (int64_t i = 0; i < lists.count; ++i) {
        const kw::Tensor t = lists.at(0, i);
        chunks += chunks_of(t);
        bytes += t.numel() * (t.dtype.bits / 8);
    }
    auto* sums = static_cast<Sum*>(std::malloc(sizeof(Sum) * static_cast<size_t>(chunks + 1)));
    kw::parallel(kw::worth(threads, bytes, 32 * 1024), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(chunks, ith, nth);
        int64_t first = 0;
        for (int64_t i = 0; i < lists.count && first < mine.end; ++i) {
            const kw::Tensor t[1] = {lists.at(0, i)};
            const int64_t n = t[0].numel(), its = chunks_of(t[0]);
            for (int64_t c = mine.begin > first ? mine.begin - first : 0; c < its && first + c < mine.end; ++c) {
                Sum sum;
                const kw::Range range{c * CHUNK, (c + 1) * CHUNK < n ? (c + 1) * CHUNK : n};
                kw::with_dtype(t[0].dtype, [&](auto zero) {
                    using T = decltype(zero);
                    kw::run_piece<1>(t, range, 0, [&](char* const* p, int64_t m) {
                        add(sum, reinterpret_cast<const T*>(p[0]), m, largest);
                    });
                });
                sums[first + c] = sum;
            }
            first += its;
        }
    });
    Sum all;
    for (int64_t c = 0; c < chunks; ++c) {
        all.squares += sums[c].squares;
        all.largest = sums[c].largest > all.largest ? sums[c].largest : all.largest;
        all.nan = all.nan || sums[c].nan;
    }
    std::free(sums);
    return all;
}

}  // namespace

// total_norm(tensors, total, largest, threads, *grads): writes a float64
KW_EXPORT(total_norm) {
    const bool largest = args.integer(2) != 0;
    const Sum sum = sum_of(kw::Lists{args, 4, args.integer(0)}, args.integer(3), largest);
    const double norm = largest ? (sum.nan ? __builtin_nan("") : sum.largest) : std::sqrt(sum.squares);
    *args.tensor(1).ptr<double>() = norm;
}

// scale_grads(tensors, scale, threads, *grads)
KW_EXPORT(scale_grads) {
    const auto by = static_cast<float>(args.real(1));
    kw::over_lists<1>(kw::Lists{args, 3, args.integer(0)}, args.integer(2), 1,
                      [&](auto t, auto, char* const* p, int64_t n) { scale(reinterpret_cast<decltype(t)*>(p[0]), n, by); });
}
