// The index of the smallest element: that of the largest among the elements with the other sign, which NaN keeps and for
// which -0 and 0 stay equal.
#include "../argmax/simd.cpp"

namespace kw {

template <class T>
struct Negated {
    T value;
};

template <class T>
inline float to_float(Negated<T> x) {
    return -to_float(x.value);
}
template <class T>
inline vf load(const Negated<T>* p) {
    return -load(&p->value);
}
template <class T>
inline vf load(const Negated<T>* p, int n) {
    return -load(&p->value, n);
}

}  // namespace kw

KW_EXPORT(argmin) {
    const kw::Tensor out = args.tensor(0), x = args.tensor(1);
    const kw::Lines l{args.integer(2), args.integer(3), args.integer(4), args.integer(5), args.integer(6)};
    if (!l.outer || !l.n || !l.inner) return;
    const int64_t bytes = l.outer * l.n * l.inner * x.dtype.bits / 8;
    const int64_t threads = kw::worth(args.integer(7), bytes, kw::REDUCTION_GRAIN);
    kw::with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::reduce<Argmax>(out.ptr<int64_t>(), x.ptr<const kw::Negated<T>>(), l, threads);
    });
}
