// y[o, i, j] = bias[o] + sum over c, p, r of weight[o, c, p, r] * x[c, i * stride + p - pad, j * stride + r - pad].
extern "C" void conv2d(const float* x, const float* weight, const float* bias, float* y, long in, long out, long height,
                       long width, long window, long stride, long pad) {
    long out_height = (height + 2 * pad - window) / stride + 1, out_width = (width + 2 * pad - window) / stride + 1;
    for (long o = 0; o < out; ++o) {
        for (long i = 0; i < out_height; ++i) {
            for (long j = 0; j < out_width; ++j) {
                y[(o * out_height + i) * out_width + j] = bias[o];  // Yours: the three sums.
            }
        }
    }
    (void)x, (void)weight, (void)in;  // Says that these are not used yet; take it away.
}
