// causal_conv1d_update on vectors of any width: the convolution over the state and x, then the state moves on.
#include "causal_conv.hpp"

// convolve(out, None, x, weight, bias or None, states, silu, along channels, threads)
KW_EXPORT(convolve) { kw::causal::run_forward(args); }

// shift(conv_state, x, threads)
KW_EXPORT(shift) { kw::causal::shift(args.tensor(0), args.tensor(1), args.integer(2)); }
