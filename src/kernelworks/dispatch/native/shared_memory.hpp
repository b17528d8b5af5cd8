// Whether a tensor of a list that a call writes shares memory with another of the call's lists.
#pragma once

#include <algorithm>
#include <vector>

#include "key.hpp"

namespace kw {

struct Span {
    const char *begin, *end;
    bool written;
};

inline bool is_list(PyObject* value) { return PyList_CheckExact(value) || PyTuple_CheckExact(value); }

inline void add_spans(PyObject* list, bool written, std::vector<Span>& spans) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(list, i);
        if (!THPVariable_CheckExact(item)) continue;
        const at::Tensor& t = THPVariable_Unpack(item);
        if (t.numel() == 0) continue;
        int64_t last = 0;
        for (int64_t k = 0; k < t.dim(); ++k) last += (t.size(k) - 1) * t.stride(k);
        const char* first = static_cast<const char*>(t.const_data_ptr());
        spans.push_back(Span{first, first + (last + 1) * t.element_size(), written});
    }
}

// `written`: the places of the arguments that a call writes, in order.
inline bool shares_memory(PyObject* const* args, Py_ssize_t count, const std::vector<Py_ssize_t>& written) {
    std::vector<Span> spans;
    for (Py_ssize_t i = 0; i < count; ++i)
        if (is_list(args[i])) add_spans(args[i], std::binary_search(written.begin(), written.end(), i), spans);
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    const char *all = nullptr, *of_written = nullptr;  // how far those so far reach
    for (const Span& span : spans) {
        if (span.begin < (span.written ? all : of_written)) return true;
        all = std::max(all, span.end);
        if (span.written) of_written = std::max(of_written, span.end);
    }
    return false;
}

}  // namespace kw
