#include <cstdint>

// table_grad[r, :] = sum of grad[t, :] over all t with ids[t] == r.
extern "C" void embedding_backward(const float* grad, const int64_t* ids, float* table_grad, long count, long rows, long d) {
    for (long at = 0; at < rows * d; ++at) {
        table_grad[at] = 0;
    }
    for (long t = 0; t < count; ++t) {
        if (ids[t] < 0) {
            continue;
        }
        for (long c = 0; c < d; ++c) {
            table_grad[ids[t] * d + c] = grad[t * d + c];  // Yours: what if two t have the same id?
        }
    }
}
