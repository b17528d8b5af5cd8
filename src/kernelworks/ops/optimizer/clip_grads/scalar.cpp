// clip_grads_, to be read: one element after another.
#include "clip.hpp"

namespace {

template <class T>
void add(kw::Sum& sum, const T* p, int64_t n, bool) {
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
