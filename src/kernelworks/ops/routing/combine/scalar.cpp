// combine, to be read: output[t] = sum over j of weights[t, j] rows[places[t, j]].
#include "places.hpp"

// combine(output [T, H], rows [R, H], weights [T, k], places [T, k], threads); weights and places are contiguous
KW_EXPORT(combine) {
    const kw::Tensor out = args.tensor(0), rows = args.tensor(1), weights = args.tensor(2);
    const kw::Places places(args.tensor(3), rows.shape[0]);
    const int64_t k = weights.shape[1];
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t t = 0; t < out.shape[0]; ++t)
            for (int64_t h = 0; h < out.shape[1]; ++h) {
                float sum = 0.0f;
                for (int64_t c = t * k; c < (t + 1) * k; ++c)
                    if (places[c] >= 0)
                        sum += kw::weight_at<T>(weights, c) *
                               kw::to_float(rows.ptr<T>()[places[c] * rows.stride[0] + h]);
                out.ptr<T>()[t * out.shape[1] + h] = kw::from_float<T>(sum);
            }
    });
}

// combine_grad_rows(grad_rows [R, H], grad_output [T, H], weights [T, k], places [T, k], starts, choices, threads)
KW_EXPORT(combine_grad_rows) {
    const kw::Tensor out = args.tensor(0), grad = args.tensor(1), weights = args.tensor(2);
    const int64_t rows = out.shape[0], width = out.shape[1], k = weights.shape[1];
    int64_t *starts = args.tensor(4).ptr<int64_t>(), *choices = args.tensor(5).ptr<int64_t>();
    kw::sort_choices(starts, choices, kw::Places(args.tensor(3), rows), weights.numel());
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t h = 0; h < width; ++h) {
                float sum = 0.0f;
                for (int64_t i = starts[r]; i < starts[r + 1]; ++i)
                    sum += kw::weight_at<T>(weights, choices[i]) *
                           kw::to_float(grad.ptr<T>()[choices[i] / k * grad.stride[0] + h]);
                out.ptr<T>()[r * width + h] = kw::from_float<T>(sum);
            }
    });
}

// combine_grad_weights(grad_weights [T, k], grad_output [T, H], rows [R, H], places [T, k], threads)
KW_EXPORT(combine_grad_weights) {
    const kw::Tensor out = args.tensor(0), grad = args.tensor(1), rows = args.tensor(2);
    const kw::Places places(args.tensor(3), rows.shape[0]);
    const int64_t k = out.shape[1];
    kw::with_dtype(rows.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t c = 0; c < out.numel(); ++c) {
            double sum = 0.0;
            for (int64_t h = 0; h < rows.shape[1] && places[c] >= 0; ++h)
                sum += static_cast<double>(kw::to_float(grad.ptr<T>()[c / k * grad.stride[0] + h])) *
                       kw::to_float(rows.ptr<T>()[places[c] * rows.stride[0] + h]);
            kw::put_weight<T>(out, c, static_cast<float>(sum));
        }
    });
}
