// The largest elements of each line, in portable vectors: select.hpp does all of it.
#include "select.hpp"

KW_EXPORT(topk) { kw::select(args); }
