// Vectors of numbers that lie in pages, and a tile of keys that may cross pages.
#pragma once

#include "pages.hpp"
#include "simd.hpp"

namespace kw {

template <class T>
inline vf load(const Paged<T>* p) {
    return load(&p->value);
}
template <class T>
inline vf load(const Paged<T>* p, int n) {
    return load(&p->value, n);
}
template <class T>
inline void store(Paged<T>* p, vf x) {
    store(&p->value, x);
}
template <class T>
inline void store(Paged<T>* p, vf x, int n) {
    store(&p->value, x, n);
}

}  // namespace kw
