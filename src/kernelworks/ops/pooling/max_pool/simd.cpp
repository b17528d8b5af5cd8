// The largest element of each window, in portable vectors: window.hpp does all of it.
#include "window.hpp"

KW_EXPORT(max_pool) { kw::pool<kw::MAX>(args); }
KW_EXPORT(max_pool_backward) { kw::pool_backward<kw::MAX_WITH_INDEX>(args); }
