// The plans of an op: from a call's key to what serves such calls. One table holds the plans of all its passes.
#pragma once

#include <string>
#include <unordered_map>

#include "key.hpp"

namespace kw {

// How a plan is called; the numbers are those of plans.py.
enum Kind : long {
    KERNEL = 0,    // call(*args), which autograd does not record
    NATIVE = 1,    // call(*args) in torch's own functions, whatever autocast says; autograd records those
    RECORDED = 2,  // call(*args), which sees to autograd itself
};

// A Plan of plans.py, taken apart once: all but `whole` are borrowed from it. What is no Plan is kept whole.
struct Plan {
    PyObject* whole;
    long kind = -1;
    PyObject *call = nullptr, *run = nullptr;
};

struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using Plans = std::unordered_map<std::string, Plan, Hash, std::equal_to<>>;

// Held by Python's lock, as every object of Python's is.
struct Table {
    PyObject_HEAD
    Plans* plans;
    const Plans::value_type* last;  // found, since calls come in rows of the same kind

    const Plan* find(const Key& key) {
        if (last != nullptr && last->first == key.view()) return &last->second;
        auto found = plans->find(key.view());
        if (found == plans->end()) return nullptr;
        last = &*found;
        return &found->second;
    }

    void clear() {
        last = nullptr;
        Plans before;
        before.swap(*plans);  // what a plan's end calls may come back here
        for (auto& [key, plan] : before) Py_DECREF(plan.whole);
    }
};

extern PyTypeObject TableType;

}  // namespace kw
