extern "C" void affine_backward(const float* grad, const float* x, float w, float* dx, float* dw, float* db, long n) {
    double sum_w = 0, sum_b = 0;
    for (long i = 0; i < n; ++i) {
        dx[i] = w * grad[i];
        sum_w += double(grad[i]) * x[i];
        sum_b += grad[i];
    }
    *dw = sum_w;
    *db = sum_b;
}
