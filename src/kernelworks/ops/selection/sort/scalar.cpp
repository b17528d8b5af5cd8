// The elements of a line in order as the definition reads, for reading: each is the one that comes next after the last.
#include "scalar_select.hpp"

KW_EXPORT(sort) { kw::select_one_by_one(args); }
