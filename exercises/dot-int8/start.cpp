#include <cstdint>

// *result = sum of x[i] * y[i].
extern "C" void dot_int8(const int8_t* x, const int8_t* y, int32_t* result, long n) {
    int8_t sum = 0;  // Yours: how many bits does the sum need?
    for (long i = 0; i < n; ++i) {
        sum += x[i] * y[i];
    }
    *result = sum;
}
