// The mean of each window, in portable vectors: window.hpp does all of it.
#include "window.hpp"

KW_EXPORT(avg_pool) { kw::pool<kw::MEAN>(args); }
KW_EXPORT(avg_pool_backward) { kw::pool_backward<kw::MEAN>(args); }
