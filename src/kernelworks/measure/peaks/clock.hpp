// How every ceiling is timed: all threads start together, thread 0 reads the clock at both barriers.
#pragma once

#include <time.h>

#include "simd.hpp"

namespace kw {

inline double seconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// out[0] = seconds between the barriers around work(ith, nth), out[1] = threads that the runtime really gave.
template <class F>
inline void timed(double* out, int64_t threads, F work) {
    double begin = 0, end = 0;
    int64_t given = 1;
    parallel(threads, [&](int64_t ith, int64_t nth) {
#pragma omp barrier
        if (ith == 0) begin = seconds_now();
        work(ith, nth);
#pragma omp barrier
        if (ith == 0) {
            end = seconds_now();
            given = nth;
        }
    });
    out[0] = end - begin;
    out[1] = static_cast<double>(given);
}

}  // namespace kw
