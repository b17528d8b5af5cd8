// dx[i] = w * grad[i]; *dw = sum of grad[i] * x[i]; *db = sum of grad[i].
extern "C" void affine_backward(const float* grad, const float* x, float w, float* dx, float* dw, float* db, long n) {
    double sum_w = 0;
    for (long i = 0; i < n; ++i) {
        sum_w += double(grad[i]) * x[i];
        // Yours: dx[i], and the sum for db.
    }
    *dw = sum_w;
    // Yours: *db.
    (void)w, (void)dx, (void)db;  // Says that these are not used yet; take it away.
}
