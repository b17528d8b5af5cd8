// The running product along a dimension, and its gradient, which divides by nothing. How lines are walked is in scan.hpp.
#include "scan.hpp"

struct Product {
    static constexpr double NONE = 1;
    static constexpr bool CUT = false;  // products of parts may leave float64 where those from the first on do not
    template <class S>
    static S join(S before, S after) {
        return before * after;
    }
    static double along(double, double x) { return x; }
    static double across(double before, double) { return before; }
};
KW_EXPORT(cumprod) { kw::scan<Product>(args); }
KW_EXPORT(cumprod_backward) { kw::scan_slopes<Product>(args); }
