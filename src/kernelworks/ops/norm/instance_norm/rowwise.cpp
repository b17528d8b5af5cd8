// Instance normalisation; simd/channel_norm.hpp says how, for every norm of channels.
#include "channel_norm.hpp"

KW_EXPORT(instance_norm) { kw::channel_norm(args); }
KW_EXPORT(instance_norm_backward) { kw::channel_norm_backward(args); }
