// Entry: a callable that takes an op's arguments, then `out` and `kernel`, all by position.
#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Exceptions.h>

#include <vector>

#include "shared_memory.hpp"
#include "table.hpp"

namespace kw {

struct Entry {
    PyObject_HEAD
    vectorcallfunc call;
    Table* table;
    PyObject* miss;  // miss(args, out, kernel)
    PyObject* out_name;  // ("out",)
    Py_ssize_t count;
    // For each argument: a test of the values that no choice of a kernel depends on, or null
    std::vector<PyObject*>* free;
    std::vector<Py_ssize_t>* written;  // the arguments that a call overwrites
    int differentiable;                // 0 where autograd has nothing to record, whatever requires gradients
};

extern PyTypeObject EntryType;

// Whether a test holds of a value that is a tensor, or of one in a list of them.
template <class Test>
bool any(PyObject* value, Test test) {
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
            if (any(PySequence_Fast_GET_ITEM(value, i), test)) return true;
        return false;
    }
    return THPVariable_CheckExact(value) && test(THPVariable_Unpack(value));
}

inline bool inference(PyObject* value) {
    return any(value, [](const at::Tensor& t) { return t.is_inference(); });
}

inline bool crosses(PyObject* value, const at::Tensor& out) {
    return any(value, [&](const at::Tensor& t) { return meet(t, out); });
}

// The versions of tensors written by address go up, as torch's do.
inline void announce(PyObject* value) {
    any(value, [](const at::Tensor& t) {
        t.unsafeGetTensorImpl()->bump_version();
        return false;
    });
}

// The key of a call, or nothing where a plan is not to be found for it here.
inline bool keyed(const Entry& entry, PyObject* const* args, Key& key) {
    PyObject *out = args[entry.count], *kernel = args[entry.count + 1];
    uint64_t wanted = 0;
    for (Py_ssize_t i = 0; i < entry.count; ++i) {
        if (PyObject* test = (*entry.free)[static_cast<size_t>(i)]; test != nullptr) {
            PyObject* valid = PyObject_CallOneArg(test, args[i]);
            if (valid == nullptr) throw python_error();
            bool holds = valid == Py_True;
            Py_DECREF(valid);
            if (holds) {
                key.free();
                continue;
            }
        }
        if (!key.value(args[i])) return false;
        wanted |= uint64_t{key.wants()} << i;
    }
    bool grad = c10::GradMode::is_enabled();
    bool graded = grad && wanted != 0 && (entry.differentiable || out != Py_None);
    if (!key.value(kernel)) return false;
    if (out != Py_None) {
        if (graded || !THPVariable_CheckExact(out)) return false;
        const at::Tensor& o = THPVariable_Unpack(out);
        if (o.is_inference() || (grad && o.requires_grad())) return false;
        for (Py_ssize_t i = 0; i < entry.count; ++i)
            if (crosses(args[i], o)) return false;
    }
    if (!key.value(out) || !key.threads()) return false;
    for (Py_ssize_t i : *entry.written)
        if (inference(args[i])) return false;  // torch may refuse, which is worked out in Python
    if (!entry.written->empty() && shares_memory(args, entry.count, *entry.written)) return false;
    if (!graded) return true;
    key.is(Key::TRAINING);
    return key.recorded(wanted);
}

// Autocast's keys are left out of every dispatch but where it is on.
inline bool autocasting(const c10::impl::LocalDispatchKeySet& local) {
    constexpr c10::DispatchKeySet keys({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA});
    return !local.excluded_.has_all(keys);
}

// What C++ threw, as an exception of Python's.
inline PyObject* raised() {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
}

// The plan for a call, or nothing where Python has to see to it. args: the op's, then `out` and `kernel`.
inline const Plan* planned(Entry& entry, PyObject* const* args, const c10::impl::LocalDispatchKeySet& local) {
    if (world.watched(local)) return nullptr;
    Key key(Key::FORWARD);
    return keyed(entry, args, key) ? entry.table->find(key) : nullptr;
}

inline PyObject* carried_out(
    const Entry& entry, Plan plan, PyObject* const* args, const c10::impl::LocalDispatchKeySet& local) {
    PyObject *out = args[entry.count], *result;
    auto count = static_cast<size_t>(entry.count);
    Py_INCREF(plan.whole);  // the table may be cleared meanwhile
    if (out != Py_None) {  // it stands behind the arguments, where its name says that it is one by name
        announce(out);
        for (Py_ssize_t i : *entry.written) announce(args[i]);
        result = PyObject_Vectorcall(plan.run, args, count, entry.out_name);
    } else if (plan.kind == NATIVE && autocasting(local)) {
        c10::impl::ExcludeDispatchKeyGuard own_dtype(c10::autocast_dispatch_keyset);
        result = PyObject_Vectorcall(plan.call, args, count, nullptr);
    } else {
        if (plan.kind == KERNEL)
            for (Py_ssize_t i : *entry.written) announce(args[i]);
        result = PyObject_Vectorcall(plan.call, args, count, nullptr);
    }
    Py_DECREF(plan.whole);
    return result;
}

inline PyObject* entered(Entry& entry, PyObject* const* args) {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    if (const Plan* found = planned(entry, args, local); found != nullptr) return carried_out(entry, *found, args, local);
    PyObject *out = args[entry.count], *whole = PyTuple_New(entry.count);
    if (whole == nullptr) return nullptr;
    for (Py_ssize_t i = 0; i < entry.count; ++i) PyTuple_SET_ITEM(whole, i, Py_NewRef(args[i]));
    PyObject* given[] = {whole, out, args[entry.count + 1]};
    PyObject* result = PyObject_Vectorcall(entry.miss, given, 3, nullptr);
    Py_DECREF(whole);
    return result;
}

// known(*args): the op of these, or NotImplemented where there is no plan for them, or where torch's function in the
// op's place would do something else with them (autocast, what was made in inference mode and is recorded).
inline PyObject* entry_known(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    constexpr Py_ssize_t MOST = 16;
    auto& entry = *reinterpret_cast<Entry*>(self);
    try {
        const auto local = c10::impl::tls_local_dispatch_key_set();
        if (count != entry.count || count > MOST || autocasting(local)) Py_RETURN_NOTIMPLEMENTED;
        PyObject* given[MOST + 2];
        bool kept = c10::GradMode::is_enabled();
        for (Py_ssize_t i = 0; i < count; ++i) {
            given[i] = args[i];
            if (kept && inference(args[i])) Py_RETURN_NOTIMPLEMENTED;
        }
        given[count] = given[count + 1] = Py_None;
        const Plan* found = planned(entry, given, local);
        if (found == nullptr) Py_RETURN_NOTIMPLEMENTED;
        return carried_out(entry, *found, given, local);
    } catch (const std::exception&) {
        return raised();
    }
}

// The op's arguments by position; `out` and `kernel` by position, by name, or not at all.
inline PyObject* entry_call(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
    auto& entry = *reinterpret_cast<Entry*>(self);
    Py_ssize_t given = PyVectorcall_NARGS(flagged), named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    try {
        if (given == entry.count + 2 && named == 0) return entered(entry, args);
        if (given < entry.count || given > entry.count + 2)
            return PyErr_Format(PyExc_TypeError, "takes %zd arguments by position, got %zd", entry.count, given);
        std::vector<PyObject*> all(args, args + given);
        all.resize(static_cast<size_t>(entry.count) + 2, Py_None);
        for (Py_ssize_t i = 0; i < named; ++i) {
            PyObject* name = PyTuple_GET_ITEM(names, i);
            bool out = PyUnicode_CompareWithASCIIString(name, "out") == 0;
            if (!out && PyUnicode_CompareWithASCIIString(name, "kernel") != 0)
                return PyErr_Format(PyExc_TypeError, "has no argument %R by name", name);
            if (given > entry.count + (out ? 0 : 1)) return PyErr_Format(PyExc_TypeError, "got %R twice", name);
            all[static_cast<size_t>(entry.count) + (out ? 0 : 1)] = args[given + i];
        }
        return entered(entry, all.data());
    } catch (const std::exception&) {
        return raised();
    }
}

// Entry(table, miss, free, written, differentiable): `free` a tuple of tests or Nones, one an argument; `written` a
// tuple of indices.
inline PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *table, *miss, *free, *written;
    int differentiable;
    if (!PyArg_ParseTuple(args, "O!OO!O!p", &TableType, &table, &miss, &PyTuple_Type, &free, &PyTuple_Type, &written, &differentiable))
        return nullptr;
    auto* self = reinterpret_cast<Entry*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->call = entry_call;
    self->table = reinterpret_cast<Table*>(Py_NewRef(table));
    self->miss = Py_NewRef(miss);
    self->count = PyTuple_GET_SIZE(free);
    self->out_name = Py_BuildValue("(s)", "out");
    self->free = new std::vector<PyObject*>;
    self->written = new std::vector<Py_ssize_t>;
    self->differentiable = differentiable;
    for (Py_ssize_t i = 0; i < self->count; ++i) {
        PyObject* test = PyTuple_GET_ITEM(free, i);
        self->free->push_back(test == Py_None ? nullptr : Py_NewRef(test));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(written); ++i)
        self->written->push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(written, i)));
    return reinterpret_cast<PyObject*>(self);
}

inline int entry_traverse(PyObject* self, visitproc visit, void* arg) {
    auto* entry = reinterpret_cast<Entry*>(self);
    Py_VISIT(reinterpret_cast<PyObject*>(entry->table));
    Py_VISIT(entry->miss);
    for (PyObject* test : *entry->free) Py_VISIT(test);
    return 0;
}

inline int entry_clear(PyObject* self) {
    auto* entry = reinterpret_cast<Entry*>(self);
    Py_CLEAR(entry->miss);  // the way back to the op, which holds this
    return 0;
}

inline void entry_dealloc(PyObject* self) {
    PyObject_GC_UnTrack(self);
    auto* entry = reinterpret_cast<Entry*>(self);
    entry_clear(self);
    Py_XDECREF(reinterpret_cast<PyObject*>(entry->table));
    Py_XDECREF(entry->out_name);
    for (PyObject* test : *entry->free) Py_XDECREF(test);
    delete entry->free;
    delete entry->written;
    Py_TYPE(self)->tp_free(self);
}

inline PyMethodDef entry_methods[] = {
    {"known", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(entry_known)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

inline PyTypeObject EntryType = [] {
    PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "kernelworks.native.Entry";
    t.tp_basicsize = sizeof(Entry);
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_BASETYPE;
    t.tp_vectorcall_offset = offsetof(Entry, call);
    t.tp_call = PyVectorcall_Call;
    t.tp_new = entry_new;
    t.tp_methods = entry_methods;
    t.tp_dealloc = entry_dealloc;
    t.tp_traverse = entry_traverse;
    t.tp_clear = entry_clear;
    return t;
}();

}  // namespace kw
