// The running sum along a dimension, and its gradient: the same from the end. How lines are walked is in scan.hpp.
#include "scan.hpp"

struct Sum {
    static constexpr double NONE = 0;
    static constexpr bool CUT = true;
    template <class S>
    static S join(S before, S after) {
        return before + after;
    }
};
KW_EXPORT(cumsum) { kw::scan<Sum>(args); }
