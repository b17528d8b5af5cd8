// The objects of Python's that record an op: its recipe, and its forward for a kernel.
#pragma once

#include "compiled.hpp"

namespace kw {

// What a kernel returned, as tensors, one for each output that there is.
inline bool unpacked(PyObject* result, std::vector<at::Tensor>& outputs) {
    if (is_tensor(result)) {
        outputs.push_back(THPVariable_Unpack(result));
        return true;
    }
    if (!PyTuple_Check(result) && !PyList_Check(result)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(result); ++i) {
        PyObject* one = PySequence_Fast_GET_ITEM(result, i);
        if (!is_tensor(one)) return false;
        outputs.push_back(THPVariable_Unpack(one));
    }
    return true;
}

// `result` again, with the tensors that recording has replaced.
inline PyObject* repacked(PyObject* result, const std::vector<at::Tensor>& outputs) {
    if (is_tensor(result))
        return THPVariable_Unpack(result).is_same(outputs[0]) ? Py_NewRef(result) : THPVariable_Wrap(outputs[0]);
    bool same = PyTuple_Check(result);
    for (size_t i = 0; i < outputs.size(); ++i)
        same = same && THPVariable_Unpack(PySequence_Fast_GET_ITEM(result, static_cast<Py_ssize_t>(i))).is_same(outputs[i]);
    if (same) return Py_NewRef(result);
    PyObject* made = PyTuple_New(static_cast<Py_ssize_t>(outputs.size()));
    for (size_t i = 0; made != nullptr && i < outputs.size(); ++i)
        PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(i), THPVariable_Wrap(outputs[i]));
    return made;
}

inline PyObject* called_with(PyObject* function, PyObject* first, PyObject* const* args, Py_ssize_t count) {
    std::vector<PyObject*> given;
    if (first != nullptr) given.push_back(first);
    given.insert(given.end(), args, args + count);
    return PyObject_Vectorcall(function, given.data(), given.size(), nullptr);
}

inline PyObject* recorder_call(PyObject* self, PyObject* const* asked, size_t flagged, PyObject* names) {
    HANDLE_TH_ERRORS
    auto& recorder = *reinterpret_cast<Recorder*>(self);
    Recipe* recipe = recorder.recipe;
    Py_ssize_t count = recipe->entry->count;
    if (PyVectorcall_NARGS(flagged) != count || (names != nullptr && PyTuple_GET_SIZE(names)))
        return PyErr_Format(PyExc_TypeError, "takes %zd arguments by position", count);
    Scoped other;  // the arguments of a forward that autograd records, where they are others
    PyObject* const* args = asked;
    if (recipe->to_record != Py_None) {
        other.reset(called_with(recipe->to_record, nullptr, asked, count));
        if (!other) return nullptr;
        if (!PyTuple_Check(other.get()) || PyTuple_GET_SIZE(other.get()) != count)
            return PyErr_Format(PyExc_TypeError, "to_record must return %zd arguments", count);
        args = PySequence_Fast_ITEMS(other.get());
    }
    Scoped result;
    {
        c10::AutoGradMode off(false);
        std::vector<PyObject*> given(args, args + count);
        given.push_back(Py_None);
        given.push_back(recorder.kernel);
        result.reset(entered(*recipe->entry, given.data()));
        if (!result) return nullptr;
        bool all = PyTuple_Check(result.get()) && PyTuple_GET_SIZE(result.get()) == std::ssize(*recipe->flows);
        if (recipe->to_torch != Py_None && !all) {  // the backward reads outputs that there are not
            result.reset(called_with(recipe->to_torch, result.get(), args, count));
            if (!result) return nullptr;
        }
    }
    std::vector<at::Tensor> outputs;
    if (!unpacked(result.get(), outputs) || outputs.size() > recipe->flows->size())
        return PyErr_Format(PyExc_TypeError, "a kernel must return a tensor or a tuple of tensors");
    record(recipe, recorder.kernel, args, count, outputs);
    result.reset(repacked(result.get(), outputs));
    if (!result || recipe->from_torch == Py_None) return result.release();
    return called_with(recipe->from_torch, result.get(), asked, count);
    END_HANDLE_TH_ERRORS
}

// ---------------------------------------------------------------- Recipe(...)

// Recipe(entry, name, to_record, to_torch, from_torch, miss, sources, edges, flows)
inline PyObject* recipe_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *entry, *to_record, *to_torch, *from_torch, *miss, *sources, *edges, *flows;
    const char* name;
    if (!PyArg_ParseTuple(args, "O!sOOOOO!O!O!", &EntryType, &entry, &name, &to_record, &to_torch, &from_torch, &miss,
                          &PyTuple_Type, &sources, &PyTuple_Type, &edges, &PyTuple_Type, &flows))
        return nullptr;
    auto* self = reinterpret_cast<Recipe*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->entry = reinterpret_cast<Entry*>(Py_NewRef(entry));
    self->name = new std::string(name);
    self->to_record = Py_NewRef(to_record);
    self->to_torch = Py_NewRef(to_torch);
    self->from_torch = Py_NewRef(from_torch);
    self->miss = Py_NewRef(miss);
    self->sources = new std::vector<Source>;
    self->edges = new std::vector<Py_ssize_t>;
    self->flows = new std::vector<bool>;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sources); ++i) {
        long from, index, unless;
        int optional;
        unsigned long long readers;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sources, i), "llpKl", &from, &index, &optional, &readers, &unless)) {
            Py_DECREF(self);
            return nullptr;
        }
        self->sources->push_back({static_cast<Source::From>(from), index, optional != 0, readers, unless});
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(edges); ++i)
        self->edges->push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(edges, i)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(flows); ++i)
        self->flows->push_back(PyTuple_GET_ITEM(flows, i) == Py_True);
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return nullptr;
    }
    return reinterpret_cast<PyObject*>(self);
}

// Not tracked by Python's collector: a node, which may hold a recipe, is unknown to it. What a recipe holds lives as
// long as its op does.
inline void recipe_dealloc(PyObject* self) {
    auto* recipe = reinterpret_cast<Recipe*>(self);
    Py_XDECREF(reinterpret_cast<PyObject*>(recipe->entry));
    for (PyObject* held : {recipe->to_record, recipe->to_torch, recipe->from_torch, recipe->miss}) Py_XDECREF(held);
    delete recipe->name;
    delete recipe->sources;
    delete recipe->edges;
    delete recipe->flows;
    Py_TYPE(self)->tp_free(self);
}

inline PyTypeObject RecipeType = [] {
    PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "kernelworks.native.Recipe";
    t.tp_basicsize = sizeof(Recipe);
    t.tp_flags = Py_TPFLAGS_DEFAULT;
    t.tp_new = recipe_new;
    t.tp_dealloc = recipe_dealloc;
    return t;
}();

// ---------------------------------------------------------------- Recorder(recipe, kernel)

inline PyObject* recorder_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *recipe, *kernel;
    if (!PyArg_ParseTuple(args, "O!O", &RecipeType, &recipe, &kernel)) return nullptr;
    auto* self = reinterpret_cast<Recorder*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->call = recorder_call;
    self->recipe = reinterpret_cast<Recipe*>(Py_NewRef(recipe));
    self->kernel = Py_NewRef(kernel);
    return reinterpret_cast<PyObject*>(self);
}

inline void recorder_dealloc(PyObject* self) {
    auto* recorder = reinterpret_cast<Recorder*>(self);
    Py_XDECREF(reinterpret_cast<PyObject*>(recorder->recipe));
    Py_XDECREF(recorder->kernel);
    Py_TYPE(self)->tp_free(self);
}

inline PyTypeObject RecorderType = [] {
    PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "kernelworks.native.Recorder";
    t.tp_basicsize = sizeof(Recorder);
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
    t.tp_vectorcall_offset = offsetof(Recorder, call);
    t.tp_call = PyVectorcall_Call;
    t.tp_new = recorder_new;
    t.tp_dealloc = recorder_dealloc;
    return t;
}();

}  // namespace kw
