// The way into an op and its plans, for calls so small that Python's share of them would show.
//
// Everything that is decided here is decided in Python too (plans.py, op.py): a call that finds no plan, or is no plain
// one, goes there, and so does every call where this file was not compiled.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>

#include "entry.hpp"
#include "public_function.hpp"
#include "operators.hpp"
#include "program.hpp"
#include "recorder.hpp"
#include "table.hpp"

namespace kw {

// ---------------------------------------------------------------- the table

// What a key is of, in Python's word, has a letter in the key.
static char letter_of(PyObject* what) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(what, &size);
    return text != nullptr && size > 0 ? text[0] : '\0';
}

// (what, wanted, args, out, kernel) as a key: false where it cannot be said.
static bool described(Key& key, PyObject* const* given) {
    PyObject* args = given[2];
    if (!PyTuple_Check(args)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i)
        if (!key.value(PyTuple_GET_ITEM(args, i))) return false;
    if (!key.value(given[4]) || !key.value(given[3]) || !key.threads()) return false;
    uint64_t wanted = PyLong_AsUnsignedLongLong(given[1]);
    if (PyErr_Occurred()) throw python_error();
    return wanted == 0 || key.recorded(wanted);
}

static PyObject* table_find(PyObject* self, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (count != 5) return PyErr_Format(PyExc_TypeError, "find(what, wanted, args, out, kernel)");
    Key key(letter_of(given[0]));
    const Plan* plan = described(key, given) ? reinterpret_cast<Table*>(self)->find(key) : nullptr;
    return Py_NewRef(plan == nullptr ? Py_None : plan->whole);
    END_HANDLE_TH_ERRORS
}

// A Plan has three slots; the references that it holds outlive what is borrowed of them here, since it is frozen.
static bool taken_apart(PyObject* whole, Plan& plan) {
    plan = {Py_NewRef(whole)};
    if (!PyObject_HasAttrString(whole, "call")) return true;
    PyObject *kind = PyObject_GetAttrString(whole, "kind"), *call = PyObject_GetAttrString(whole, "call"),
             *run = PyObject_GetAttrString(whole, "run");
    bool fine = kind != nullptr && call != nullptr && run != nullptr;
    if (fine) plan.kind = PyLong_AsLong(kind), plan.call = call, plan.run = run;
    Py_XDECREF(kind), Py_XDECREF(call), Py_XDECREF(run);
    if (PyErr_Occurred()) fine = false;
    if (!fine) Py_DECREF(whole);
    return fine;
}

static PyObject* table_keep(PyObject* self, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (count != 6) return PyErr_Format(PyExc_TypeError, "keep(what, wanted, args, out, kernel, plan)");
    Key key(letter_of(given[0]));
    auto* table = reinterpret_cast<Table*>(self);
    if (described(key, given)) {
        Plan plan;
        if (!taken_apart(given[5], plan)) return nullptr;
        auto [at, fresh] = table->plans->try_emplace(std::string(key.view()), plan);
        if (!fresh) {
            std::swap(at->second, plan);
            Py_DECREF(plan.whole);
        }
    }
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

static PyObject* table_clear(PyObject* self, PyObject*) {
    reinterpret_cast<Table*>(self)->clear();
    Py_RETURN_NONE;
}

static Py_ssize_t table_size(PyObject* self) {
    return static_cast<Py_ssize_t>(reinterpret_cast<Table*>(self)->plans->size());
}

static PyObject* table_new(PyTypeObject* type, PyObject*, PyObject*) {
    PyObject* self = type->tp_alloc(type, 0);
    if (self != nullptr) reinterpret_cast<Table*>(self)->plans = new Plans;
    return self;
}

static int table_traverse(PyObject* self, visitproc visit, void* arg) {
    for (auto& [key, plan] : *reinterpret_cast<Table*>(self)->plans) Py_VISIT(plan.whole);
    return 0;
}

static int table_gc_clear(PyObject* self) {
    reinterpret_cast<Table*>(self)->clear();
    return 0;
}

static void table_dealloc(PyObject* self) {
    PyObject_GC_UnTrack(self);
    auto* table = reinterpret_cast<Table*>(self);
    table->clear();
    delete table->plans;
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef table_methods[] = {
    {"find", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(table_find)), METH_FASTCALL, nullptr},
    {"keep", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(table_keep)), METH_FASTCALL, nullptr},
    {"clear", table_clear, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
static PySequenceMethods table_sequence = {.sq_length = table_size};

PyTypeObject TableType = [] {
    PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "kernelworks.native.Table";
    t.tp_basicsize = sizeof(Table);
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    t.tp_new = table_new;
    t.tp_dealloc = table_dealloc;
    t.tp_traverse = table_traverse;
    t.tp_clear = table_gc_clear;
    t.tp_methods = table_methods;
    t.tp_as_sequence = &table_sequence;
    return t;
}();

// ---------------------------------------------------------------- the module

// setup(memory, profiler module, forward_ad module)
static PyObject* setup(PyObject*, PyObject* const* given, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "setup(memory, profiler, forward_ad)");
    uint64_t memory = PyLong_AsUnsignedLongLong(given[0]);
    if (PyErr_Occurred()) return nullptr;
    if (!PyModule_Check(given[1]) || !PyModule_Check(given[2])) return PyErr_Format(PyExc_TypeError, "setup takes modules");
    world = {memory, {given[1], "_is_profiler_enabled"}, {given[2], "_current_level"}};
    Py_RETURN_NONE;
}

// direct(type): instances of a class derived from Entry are called as Entry is, whatever `__call__` its class has. That
// one is for those who read it (torch.compile).
static PyObject* direct(PyObject*, PyObject* type) {
    auto* derived = reinterpret_cast<PyTypeObject*>(type);
    if (!PyType_Check(type) || !PyType_IsSubtype(derived, &EntryType))
        return PyErr_Format(PyExc_TypeError, "direct takes a class derived from Entry");
    derived->tp_vectorcall_offset = EntryType.tp_vectorcall_offset;
    derived->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    PyType_Modified(derived);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"attach", attach, METH_VARARGS, nullptr},
    {"direct", direct, METH_O, nullptr},
    {"setup", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(setup)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", nullptr, -1, functions};

}  // namespace kw

PyMODINIT_FUNC PyInit_native() {
    PyObject* made = PyModule_Create(&kw::module);
    for (auto [name, type] : {std::pair{"Table", &kw::TableType}, {"Entry", &kw::EntryType}, {"Recipe", &kw::RecipeType},
                              {"Recorder", &kw::RecorderType}, {"Program", &kw::ProgramType}, {"Operator", &kw::OperatorType}})
        if (made == nullptr || PyType_Ready(type) < 0 ||
            PyModule_AddObjectRef(made, name, reinterpret_cast<PyObject*>(type)) < 0)
            return nullptr;
    return made;
}
