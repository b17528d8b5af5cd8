extern "C" void conv2d(const float* x, const float* weight, const float* bias, float* y, long in, long out, long height,
                       long width, long window, long stride, long pad) {
    long out_height = (height + 2 * pad - window) / stride + 1, out_width = (width + 2 * pad - window) / stride + 1;
    for (long o = 0; o < out; ++o) {
        for (long i = 0; i < out_height; ++i) {
            for (long j = 0; j < out_width; ++j) {
                float sum = bias[o];
                for (long c = 0; c < in; ++c) {
                    for (long p = 0; p < window; ++p) {
                        for (long r = 0; r < window; ++r) {
                            long row = i * stride - pad + p, column = j * stride - pad + r;
                            if (row < 0 || row >= height || column < 0 || column >= width) {
                                continue;
                            }
                            sum += weight[((o * in + c) * window + p) * window + r] * x[(c * height + row) * width + column];
                        }
                    }
                }
                y[(o * out_height + i) * out_width + j] = sum;
            }
        }
    }
}
