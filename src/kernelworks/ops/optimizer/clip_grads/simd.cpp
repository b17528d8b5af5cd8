// clip_grads_ on vectors of any width, whose halves are squared and summed in float64.
#include "clip.hpp"
#include "simd.hpp"

namespace {

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
void add_squares(kw::Sum& sum, const T* p, int64_t n) {
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
void add_largest(kw::Sum& sum, const T* p, int64_t n) {
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
void add(kw::Sum& sum, const T* p, int64_t n, bool largest) {
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
}  // namespace

// total_norm(tensors, total, largest, threads, *grads): writes a float64
KW_EXPORT(total_norm) {
    const bool largest = args.integer(2) != 0;
    const kw::Sum sum = kw::sum_of(kw::Lists{args, 4, args.integer(0)}, args.integer(3),
                                   [&](kw::Sum& to, const auto* p, int64_t n) { add(to, p, n, largest); });
    *args.tensor(1).ptr<double>() = sum.norm(largest);
}

// scale_grads(tensors, scale, threads, *grads)
KW_EXPORT(scale_grads) {
    const auto by = static_cast<float>(args.real(1));
    kw::over_lists<1>(kw::Lists{args, 3, args.integer(0)}, args.integer(2), 1,
                      [&](auto t, auto, char* const* p, int64_t n) { scale(reinterpret_cast<decltype(t)*>(p[0]), n, by); });
}
