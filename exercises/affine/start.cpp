// y[i] = w * x[i] + b, for i = 0 to n - 1.
extern "C" void affine(const float* x, float w, float b, float* y, long n) {
    for (long i = 0; i < n; ++i) {
        y[i] = x[i];  // Yours: w * x[i] + b.
    }
}
