// sgd_, one source for vectors of any width and, for the plain target, one element after another in float64. Values
// and numbers that could leave float32's range on the way take the float64 element too.
#include "step.hpp"

namespace {

struct Sgd {
    double rate, momentum, take, decay, sign;  // take = 1 - dampening, sign = -1 where the objective is maximized
    bool nesterov, first;

    // Whether every number may be taken in float32: no product on the way leaves its range.
    bool narrow() const {
        const double numbers[] = {rate, momentum, take, decay};
        for (double x : numbers)
            if (x != 0.0 && !(std::fabs(x) >= 0x1p-100 && std::fabs(x) <= 0x1p15)) return false;
        return true;
    }
};

// The numbers as an element's operand takes them.
template <class V, class N>
struct Numbers {
    N rate, momentum, take, decay, sign;
    bool nesterov, first, decays;

    explicit Numbers(const Sgd& s)
        : rate(static_cast<N>(s.rate)), momentum(static_cast<N>(s.momentum)), take(static_cast<N>(s.take)),
          decay(static_cast<N>(s.decay)), sign(static_cast<N>(s.sign)), nesterov(s.nesterov), first(s.first),
          decays(s.decay != 0.0) {}

    V direction(V p, V g) const { return decays ? g * sign + p * decay : g * sign; }
    V average(V b, V d) const { return first ? d : b * momentum + d * take; }
    V stepped(V p, V d, V b) const { return p - (nesterov ? d + b * momentum : b) * rate; }
};

template <class T>
double as_double(const T* p) {
    return static_cast<double>(kw::to_float(*p));
}
template <class T>
void put(T* p, double x) {
    *p = kw::from_float<T>(static_cast<float>(x));
}

template <bool MOMENTUM, class T, class S>
void one_by_one(T* p, S* b, const T* g, int64_t n, const Numbers<double, double>& a) {
    for (int64_t i = 0; i < n; ++i) {
        const double x = as_double(p + i), d = a.direction(x, as_double(g + i));
        if constexpr (MOMENTUM) {
            const double average = a.average(as_double(b + i), d);
            put(p + i, a.stepped(x, d, average));
            put(b + i, average);
        } else {
            put(p + i, x - d * a.rate);
        }
    }
}

#if KW_VECTORS
bool any_beyond(kw::vf x) {
    const auto beyond = kw::abs(x) > 0x1p60f;
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)beyond);
#else
    return _mm256_movemask_ps((__m256)beyond);
#endif
}

template <bool MOMENTUM, class T, class S>
void update(T* p, S* b, const T* g, int64_t n, const Sgd& s) {
    const Numbers<double, double> exact(s);
    if (!s.narrow()) return one_by_one<MOMENTUM>(p, b, g, n, exact);
    const Numbers<kw::vf, float> a(s);
    auto several = [&](int64_t i, auto... k) {  // a whole vector, or the first k elements of one
        const kw::vf x = kw::load(p + i, k...), d0 = kw::load(g + i, k...);
        kw::vf m{};
        if constexpr (MOMENTUM)
            if (!a.first) m = kw::load(b + i, k...);
        if (any_beyond(kw::max(kw::max(kw::abs(x), kw::abs(d0)), kw::abs(m)))) [[unlikely]]
            return one_by_one<MOMENTUM>(p + i, MOMENTUM ? b + i : b, g + i, (int64_t{kw::LANES} + ... + (k - kw::LANES)), exact);
        const kw::vf d = a.direction(x, d0);
        if constexpr (MOMENTUM) {
            m = a.average(m, d);
            kw::store(p + i, a.stepped(x, d, m), k...);
            kw::store(b + i, m, k...);
        } else {
            kw::store(p + i, x - d * a.rate, k...);
        }
    };
    int64_t i = 0;
    for (; i + kw::LANES <= n; i += kw::LANES) several(i);
    if (i < n) several(i, static_cast<int>(n - i));
}
#else
template <bool MOMENTUM, class T, class S>
void update(T* p, S* b, const T* g, int64_t n, const Sgd& s) {
    one_by_one<MOMENTUM>(p, b, g, n, Numbers<double, double>(s));
}
#endif

}  // namespace

// sgd_(tensors, rate, momentum, dampening, weight_decay, nesterov, maximize, is_first_step, threads, *params,
// [*momentum_buffers,] *grads)
KW_EXPORT(sgd_) {
    const Sgd s{args.real(1), args.real(2), 1.0 - args.real(3), args.real(4), args.integer(6) ? -1.0 : 1.0,
                args.integer(5) != 0, args.integer(7) != 0};
    const bool momentum = s.momentum != 0.0;
    const kw::Lists lists{args, 9, args.integer(0)};
    if (momentum) {
        kw::over_lists<3>(lists, args.integer(8), 2, [&](auto t, auto b, char* const* p, int64_t n) {
            using T = decltype(t);
            using S = decltype(b);
            update<true>(reinterpret_cast<T*>(p[0]), reinterpret_cast<S*>(p[1]), reinterpret_cast<const T*>(p[2]), n, s);
        });
    } else {
        kw::over_lists<2>(lists, args.integer(8), 1, [&](auto t, auto, char* const* p, int64_t n) {
            using T = decltype(t);
            update<false>(reinterpret_cast<T*>(p[0]), static_cast<T*>(nullptr), reinterpret_cast<const T*>(p[1]), n, s);
        });
    }
}
