// Public functions: a call of an op's public function in Python that reads as the op's own goes straight to the op.
//
// The function stays the function that it is, for inspect, pickle, help and torch.compile. What changes is how the
// interpreter calls it (from Python 3.12 on; before, it does so for calls from C alone). A call that is not all of the
// op's own arguments, each of its own type, runs the function's code, as every call does while a frame evaluator other
// than Python's is at work (Dynamo's).
#pragma once

#include <array>
#include <unordered_map>

#include "entry.hpp"

namespace kw {

struct Parameter {
    PyObject* name;    // interned
    PyObject* preset;  // the default, or null where there must be a value
    int8_t place;      // by position, or -1
    bool by_name;      // may be given by its name
    char kind;         // of value: T tensor, i int, f float, b bool, s str; ? for out and kernel, which are any
    bool optional;     // may be None
};

struct PublicFunction {
    vectorcallfunc plain;  // runs the function's code
    Entry* entry;
    Py_ssize_t positional;
    std::vector<Parameter> parameters;  // the op's arguments, then `out` and `kernel`
};

inline std::unordered_map<PyObject*, PublicFunction> public_functions;

// What is known of an attached function. Calls come in rows of the same few functions.
inline const PublicFunction& public_function_of(PyObject* function) {
    static std::array<std::pair<PyObject*, const PublicFunction*>, 16> recent;
    auto& [known, target] = recent[(reinterpret_cast<uintptr_t>(function) >> 5) % recent.size()];
    if (known != function) known = function, target = &public_functions.find(function)->second;  // which stays where it is
    return *target;
}

inline bool fits(const Parameter& parameter, PyObject* value) {
    if (value == Py_None && parameter.optional) return true;
    switch (parameter.kind) {
        case 'T': return THPVariable_CheckExact(value);
        case 'i': return PyLong_CheckExact(value);
        case 'f': return PyFloat_CheckExact(value) || PyLong_CheckExact(value);
        case 'b': return PyBool_Check(value);
        case 's': return PyUnicode_CheckExact(value);
        default: return true;
    }
}

inline PyObject* face_call(PyObject* function, PyObject* const* args, size_t flagged, PyObject* names) {
    constexpr size_t MOST = 16;
    const PublicFunction& target = public_function_of(function);
    Py_ssize_t given = PyVectorcall_NARGS(flagged), named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    size_t count = target.parameters.size();
    PyObject* values[MOST] = {};
    bool own = target.entry != nullptr && given <= target.positional && _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == _PyEval_EvalFrameDefault;
    for (Py_ssize_t i = 0; own && i < named; ++i) {
        PyObject* name = PyTuple_GET_ITEM(names, i);
        size_t j = 0;
        while (j < count && (target.parameters[j].name != name || !target.parameters[j].by_name)) ++j;
        own = j < count && (target.parameters[j].place < 0 || target.parameters[j].place >= given);  // not given twice
        if (own) values[j] = args[given + i];
    }
    for (size_t j = 0; own && j < count; ++j) {
        const Parameter& parameter = target.parameters[j];
        if (parameter.place >= 0 && parameter.place < given) values[j] = args[parameter.place];
        if (values[j] == nullptr) values[j] = parameter.preset;
        own = values[j] != nullptr && fits(parameter, values[j]);
    }
    if (!own) return target.plain(function, args, flagged, names);
    PyObject* entry = Py_NewRef(reinterpret_cast<PyObject*>(target.entry));  // another may take its place meanwhile
    PyObject* result;
    try {
        result = entered(*reinterpret_cast<Entry*>(entry), values);
    } catch (const std::exception&) {
        result = raised();
    }
    Py_DECREF(entry);
    return result;
}

inline void set_vectorcall(PyObject* function, vectorcallfunc call) {
#if PY_VERSION_HEX >= 0x030C0000
    PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function), call);
#else
    reinterpret_cast<PyFunctionObject*>(function)->vectorcall = call;
#endif
}

// attach(function, entry, positional, parameters): from now on calls go to the entry; with None for it, as ever.
// A parameter: (name, has_default, default, place, by_name, kind, optional).
inline PyObject* attach(PyObject*, PyObject* args) {
    PyObject *function, *entry, *parameters;
    Py_ssize_t positional;
    if (!PyArg_ParseTuple(args, "O!OnO!", &PyFunction_Type, &function, &entry, &positional, &PyTuple_Type, &parameters))
        return nullptr;
    auto known = public_functions.find(function);
    if (known != public_functions.end()) set_vectorcall(function, known->second.plain);
    if (entry == Py_None) {
        if (known != public_functions.end()) Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(known->second.entry, nullptr)));
        Py_RETURN_NONE;
    }
    // As many as an op has arguments, and no more than fit a call.
    if (!PyObject_TypeCheck(entry, &EntryType) || PyTuple_GET_SIZE(parameters) > 16 ||
        PyTuple_GET_SIZE(parameters) != reinterpret_cast<Entry*>(entry)->count + 2)
        return PyErr_Format(PyExc_TypeError, "attach(function, entry, positional, parameters)");
    PublicFunction target{known == public_functions.end() ? reinterpret_cast<PyFunctionObject*>(function)->vectorcall : known->second.plain,
              reinterpret_cast<Entry*>(Py_NewRef(entry)), positional, {}};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameters); ++i) {
        PyObject *name, *preset;
        int has, by_name, optional, kind;
        Py_ssize_t place;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parameters, i), "UpOnpCp", &name, &has, &preset, &place, &by_name, &kind, &optional))
            return nullptr;
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        target.parameters.push_back({name, has ? Py_NewRef(preset) : nullptr, static_cast<int8_t>(place), by_name != 0, static_cast<char>(kind), optional != 0});
    }
    if (known == public_functions.end()) {
        Py_INCREF(function);  // as long as the process lives, as public functions do
        public_functions.emplace(function, std::move(target));
    } else {  // names and defaults are what they were, and a call of another thread may be reading them
        std::swap(known->second.entry, target.entry);
        Py_XDECREF(reinterpret_cast<PyObject*>(target.entry));
    }
    set_vectorcall(function, face_call);
    Py_RETURN_NONE;
}

}  // namespace kw
