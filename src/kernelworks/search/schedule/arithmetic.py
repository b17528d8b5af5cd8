"""What printed kernels may call: vectors as GCC has them, and the functions of a nest on them and on single floats.

Only what a kernel calls is printed with it. On single floats functions are the C library's; on vectors exp, log,
erf and tanh are polynomials, the rare ones go lane by lane.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["SYMBOLS", "VECTOR_EXPRESSIONS", "text_of"]

# Functions that are an expression in C++ on floats and vectors alike.
SYMBOLS = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})", "neg": "(-{0})",
    "square": "({0} * {0})", "reciprocal": "(1.0f / {0})",
}  # fmt: skip
# And those whose operands must all be vectors where one is.
VECTOR_EXPRESSIONS = {
    "less": "({0} < {1})", "less_equal": "({0} <= {1})", "equal": "({0} == {1})", "not_equal": "({0} != {1})",
    "and": "({0} & {1})", "or": "({0} | {1})", "not": "(!{0})", "select": "({0} ? {1} : {2})",
}  # fmt: skip

VECTOR = """\
typedef float v{n} __attribute__((vector_size({bytes})));
typedef int i{n} __attribute__((vector_size({bytes})));
typedef float u{n} __attribute__((vector_size({bytes}), aligned(4), may_alias));"""

BASE = """\
// A vector from or to any address, and what it is when each lane is.
template <class V> constexpr int lanes = sizeof(V) / 4;
template <class V> struct at_;
template <class V> inline V splat(float x) { return x - V{}; }
template <class V> inline V load(const float* p) { return *(const typename at_<V>::type*)p; }
template <class V> inline void store(float* p, V x) { *(typename at_<V>::type*)p = x; }
template <class V> inline V gather(const float* p, long stride) {
    V r;
    for (int l = 0; l < lanes<V>; ++l) r[l] = p[l * stride];
    return r;
}
template <class V> inline V count(float from, float step) {
    V r;
    for (int l = 0; l < lanes<V>; ++l) r[l] = from + step * l;
    return r;
}"""

FUNCTIONS = {
    "int": """\
template <class V, class T> inline V whole(const T* p, long stride) {
    V r;
    for (int l = 0; l < lanes<V>; ++l) r[l] = (float)p[l * stride];
    return r;
}""",
    "nearest": """\
template <class V> inline V nearest(V x) {  // |x| < 2^22
    const V up = x + 12582912.0f;
    return up - 12582912.0f;
}
template <class V, class I> inline V times_power(V x, I n) {  // x 2^n, in two steps: n may be below -126
    const I half = n >> 1, rest = n - half;
    return x * (V)((half + 127) << 23) * (V)((rest + 127) << 23);
}""",
    "exp": """\
inline float exp_(float x) { return expf(x); }
template <class V> inline V exp_(V x) {
    x = x > 89.0f ? splat<V>(89.0f) : x;  // in this order a NaN survives
    x = x < -104.5f ? splat<V>(-104.5f) : x;
    const V n = nearest(x * 1.44269504f);
    V r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    V p = r * 1.3898866e-3f + 8.3750887e-3f;
    p = p * r + 4.1668225e-2f;
    p = p * r + 1.6666430e-1f;
    p = p * r + 4.9999997e-1f;
    p = p * r * r + r + 1.0f;
    const V known = n == n ? n : V{};
    return x == x ? times_power(p, __builtin_convertvector(known, decltype(n < n))) : x;
}""",
    "log": """\
inline float log_(float x) { return logf(x); }
template <class V> inline V log_(V x) {
    using I = decltype(x < x);
    const I small = x < 1.17549435e-38f;
    const V scaled = small ? x * 8388608.0f : x;
    I bits = (I)scaled - 0x3f3504f3;  // from sqrt(1/2) on
    V n = __builtin_convertvector(bits >> 23, V) - (small ? splat<V>(23.0f) : V{});
    const V m = (V)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f, mm = m * m;
    V p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = p * m * mm + n * -2.12194440e-4f - 0.5f * mm;
    V r = m + p + n * 0.693359375f;
    r = x == 0.0f ? splat<V>(-INFINITY) : r;
    r = x < 0.0f ? splat<V>(NAN) : r;
    return x < INFINITY ? r : x;
}""",
    "sigmoid": """\
template <class T> inline T sigmoid_(T x) { return 1.0f / (1.0f + exp_(-x)); }""",
    "tanh": """\
inline float tanh_(float x) { return tanhf(x); }
template <class V> inline V tanh_(V x) {
    const V e = exp_(-2.0f * (x < 0.0f ? -x : x)), r = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -r : r;
}""",
    "erf": """\
inline float erf_(float x) { return erff(x); }
template <class V> inline V erf_(V x) {  // a rational function, as Eigen has it
    x = x > 4.0f ? splat<V>(4.0f) : x;
    x = x < -4.0f ? splat<V>(-4.0f) : x;
    const V z = x * x;
    V p = z * -2.72614225801306e-10f + 2.77068142495902e-08f;
    p = p * z - 2.10102402082508e-06f;
    p = p * z - 5.69250639462346e-05f;
    p = p * z - 7.34990630326855e-04f;
    p = p * z - 2.95459980854025e-03f;
    p = p * z - 1.60960333262415e-02f;
    V q = z * -1.45660718464996e-05f - 2.13374055278905e-04f;
    q = q * z - 1.68282697438203e-03f;
    q = q * z - 7.37332916720468e-03f;
    q = q * z - 1.42647390514189e-02f;
    return x * p / q;
}""",
    "sqrt": """\
inline float sqrt_(float x) { return sqrtf(x); }
template <class V> inline V sqrt_(V x) {
    for (int l = 0; l < lanes<V>; ++l) x[l] = __builtin_sqrtf(x[l]);
    return x;
}""",
    "rsqrt": """\
template <class T> inline T rsqrt_(T x) { return 1.0f / sqrt_(x); }""",
    "abs": """\
template <class T> inline T abs_(T x) { return x < 0.0f ? -x : x + 0.0f; }""",
    "relu": """\
inline float relu_(float x) { return x < 0.0f ? 0.0f : x; }
template <class V> inline V relu_(V x) { return x < 0.0f ? V{} : x; }  // a NaN stays""",
    "max": """\
template <class T> inline T max_(T a, T b) { return a != a ? a : b < a ? a : b; }  // a NaN in either stays""",
    "min": """\
template <class T> inline T min_(T a, T b) { return a != a ? a : a < b ? a : b; }""",
    "floor": """\
inline float floor_(float x) { return floorf(x); }
template <class V> inline V floor_(V x) {
    for (int l = 0; l < lanes<V>; ++l) x[l] = __builtin_floorf(x[l]);
    return x;
}""",
    "sum_of": """\
template <class V> inline float sum_of(V x) {
    for (int h = lanes<V> / 2; h > 0; h /= 2)
        for (int l = 0; l < h; ++l) x[l] += x[l + h];
    return x[0];
}""",
    "max_of": """\
template <class V> inline float max_of(V x) {
    for (int h = lanes<V> / 2; h > 0; h /= 2)
        for (int l = 0; l < h; ++l) x[l] = max_((float)x[l], (float)x[l + h]);
    return x[0];
}""",
    "min_of": """\
template <class V> inline float min_of(V x) {
    for (int h = lanes<V> / 2; h > 0; h /= 2)
        for (int l = 0; l < h; ++l) x[l] = min_((float)x[l], (float)x[l + h]);
    return x[0];
}""",
}
BY_LANE = """\
inline float {name}_(float x) {{ return {name}f(x); }}
template <class V> inline V {name}_(V x) {{
    for (int l = 0; l < lanes<V>; ++l) x[l] = {name}f(x[l]);
    return x;
}}"""
FUNCTIONS |= {name: BY_LANE.format(name=name) for name in ("expm1", "log1p", "sin", "cos")}
FUNCTIONS["pow"] = """\
inline float pow_(float x, float y) { return powf(x, y); }
template <class V> inline V pow_(V x, V y) {
    for (int l = 0; l < lanes<V>; ++l) x[l] = powf(x[l], y[l]);
    return x;
}"""
NEEDS = {
    "exp": ("nearest",), "sigmoid": ("exp",), "tanh": ("exp",), "rsqrt": ("sqrt",),
    "max_of": ("max",), "min_of": ("min",),
}  # fmt: skip


def text_of(functions: Iterable[str], widths: Iterable[int]) -> str:
    """The declarations that a kernel of these functions and widths needs, each after what it calls itself."""
    wanted: list[str] = []

    def need(name: str) -> None:
        for other in NEEDS.get(name, ()):
            need(other)
        if name in FUNCTIONS and name not in wanted:
            wanted.append(name)

    for name in sorted(functions):
        need(name)
    vectors = sorted(set(widths))
    parts = [VECTOR.format(n=n, bytes=4 * n) for n in vectors]
    parts.append(BASE)
    parts += [f"template <> struct at_<v{n}> {{ typedef u{n} type; }};" for n in vectors]
    return "\n".join([*parts, *(FUNCTIONS[name] for name in wanted)])
