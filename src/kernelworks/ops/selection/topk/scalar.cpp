// The first k elements of a line as the definition reads, for reading: each is the one that comes next after the last.
#include "scalar_select.hpp"

KW_EXPORT(topk) { kw::select_one_by_one(args); }
