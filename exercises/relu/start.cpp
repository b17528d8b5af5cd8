// y[i] = x[i] where it is above 0, else 0; NaN stays NaN.
extern "C" void relu(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) {
        y[i] = x[i];  // Yours: 0 for what is below 0.
    }
}
