// Packed formats: how a block of numbers lies in bytes, decoded in registers and encoded. The definitions are those of
// contract/packed_formats.py; a format is one struct and one line in `with_format`.
#pragma once

#include "blocks.hpp"
#include "groups.hpp"
#include "superblocks.hpp"

namespace kw {

// f(format) of the format with that number.
template <class Function>
inline void with_format(int64_t number, Function f) {
    switch (number) {
        case 2: return f(Q4_0{});
        case 3: return f(Q4_1{});
        case 6: return f(Q5_0{});
        case 7: return f(Q5_1{});
        case 12: return f(Q4_K{});
        case 13: return f(Q5_K{});
        case 14: return f(Q6_K{});
        case 20: return f(IQ4_NL{});
        case 1001: return f(INT4_128{});
        case 1002: return f(UINT4_128{});
        default: return f(Q8_0{});
    }
}

}  // namespace kw
