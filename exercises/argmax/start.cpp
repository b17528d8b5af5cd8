#include <cstdint>

// index[i] = where the largest number of row i stands; of equal ones the first, and NaN counts as the largest.
extern "C" void argmax(const float* x, int64_t* index, long rows, long n) {
    for (long i = 0; i < rows; ++i) {
        const float* row = x + i * n;
        long best = 0;
        for (long j = 0; j < n; ++j) {
            if (row[j] >= row[best]) {  // Yours: which one of equal numbers, and what of NaN?
                best = j;
            }
        }
        index[i] = best;
    }
}
