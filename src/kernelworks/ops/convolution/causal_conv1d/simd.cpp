// causal_conv1d on vectors of any width.
#include "causal_conv.hpp"

// causal_conv1d(out, final_states or None, x, weight, bias or None, states or None, silu, along channels, threads)
// x and out [B, D, L] with unit stride in D (along channels) or in L
KW_EXPORT(causal_conv1d) { kw::causal::run_forward(args); }

// causal_conv1d_backward(grad_x, grad_weight, grad_bias, grad_states, grad, grad_final, x, weight, bias, states, silu,
//                        along channels, threads); grad_weight, grad_bias and grad_states contiguous or None
KW_EXPORT(causal_conv1d_backward) { kw::causal::run_backward(args); }
