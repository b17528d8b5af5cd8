#include <cmath>

// y[i, j] = exp(x[i, j]) / sum of exp of row i.
extern "C" void softmax(const float* x, float* y, long rows, long n) {
    for (long i = 0; i < rows; ++i) {
        const float* row = x + i * n;
        float* out = y + i * n;
        float sum = 0;
        for (long j = 0; j < n; ++j) {
            out[j] = std::exp(row[j]);  // Yours: this overflows for scores of 100.
            sum += out[j];
        }
        for (long j = 0; j < n; ++j) {
            out[j] /= sum;
        }
    }
}
