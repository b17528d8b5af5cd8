// *result = sum of x[i] * y[i].
extern "C" void dot(const float* x, const float* y, float* result, long n) {
    double sum = 0;
    for (long i = 0; i < n; ++i) {
        sum += x[i] + y[i];  // Yours: a product, in double.
    }
    *result = sum;
}
