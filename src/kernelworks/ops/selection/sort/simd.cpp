// The elements of each line in order, in portable vectors: select.hpp does all of it.
#include "select.hpp"

KW_EXPORT(sort) { kw::select(args); }
