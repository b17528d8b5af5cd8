// What an expression of pointwise.hpp may call, for an operand V that is either a vector of floats or, in plain code, a
// double: the same names for both, so that one expression is the vector kernel and the one to be read.
//
//     max min abs fma    as simd.hpp has them: of two operands the second is returned where one is NaN
//     both(a, b)         two results, for a function with two
#pragma once

#if defined(__AVX2__)
#define KW_VECTORS 1
#include "simd.hpp"
#else  // the target for reading: one element after another, in float64, by the C library's functions
#define KW_VECTORS 0
#include "kernel.hpp"
#endif

namespace kw {

#if KW_VECTORS
using V = vf;
inline vf max(float a, vf b) { return max(splat(a), b); }
inline vf min(float a, vf b) { return min(splat(a), b); }
#else
using V = double;
inline double max(double a, double b) { return a > b ? a : b; }
inline double min(double a, double b) { return a < b ? a : b; }
inline double abs(double a) { return std::fabs(a); }
inline double fma(double a, double b, double c) { return a * b + c; }
#endif

template <int K>
struct Several {
    V of[K];
};
inline Several<2> both(V a, V b) { return Several<2>{{a, b}}; }

}  // namespace kw
