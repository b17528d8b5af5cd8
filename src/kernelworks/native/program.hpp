// Program: a few of torch's operators one after another, with all arguments but the tensors settled; called as torch's
// functions in Python call them (autograd, hooks, warnings and errors are torch's), less the parsing of arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <vector>

namespace kw {

struct Operand {
    enum From : long { INPUT = 0, RESULT = 1, CONSTANT = 2, DEFAULT = 3 } from;
    size_t index = 0;      // of an argument of the call, or of a step before
    c10::IValue constant;  // or the default
};

struct Step {
    c10::OperatorHandle operator_;
    std::vector<Operand> operands;
};

struct Program {
    PyObject_HEAD
    vectorcallfunc call;
    Py_ssize_t count;
    std::vector<Step>* steps;
    std::vector<size_t>* outputs;  // steps
    bool one;                      // a tensor, no tuple
};

// A constant as the operator's schema has it. Raises TypeError for a type that no operator of ours takes.
inline c10::IValue constant_of(PyObject* value, const c10::Type& type) {
    if (const auto* optional = type.castRaw<c10::OptionalType>())
        return value == Py_None ? c10::IValue() : constant_of(value, *optional->getElementType());
    switch (type.kind()) {
        case c10::TypeKind::FloatType:
            if (PyFloat_Check(value) || PyLong_Check(value)) return PyFloat_AsDouble(value);
            break;
        case c10::TypeKind::IntType:
            if (PyLong_Check(value)) return static_cast<int64_t>(PyLong_AsLongLong(value));
            break;
        case c10::TypeKind::BoolType:
            if (PyBool_Check(value)) return value == Py_True;
            break;
        case c10::TypeKind::StringType:
            if (PyUnicode_Check(value)) return std::string(PyUnicode_AsUTF8(value));
            break;
        case c10::TypeKind::ListType:
            if (type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::IntType && PyTuple_Check(value)) {
                c10::List<int64_t> list;
                for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) list.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(value, i)));
                return list;
            }
            break;
        default: break;
    }
    PyErr_Format(PyExc_TypeError, "no constant of type %s: %R", type.str().c_str(), value);
    throw python_error();
}

inline PyObject* program_call(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
    HANDLE_TH_ERRORS
    const auto& program = *reinterpret_cast<Program*>(self);
    if (PyVectorcall_NARGS(flagged) != program.count || (names != nullptr && PyTuple_GET_SIZE(names)))
        return PyErr_Format(PyExc_TypeError, "takes %zd arguments by position", program.count);
    c10::SmallVector<at::Tensor, 4> results;
    {
        // What the steps read, taken while Python's lock is held.
        std::vector<torch::jit::Stack> stacks(program.steps->size());
        for (size_t i = 0; i < stacks.size(); ++i) {
            const Step& step = (*program.steps)[i];
            stacks[i].reserve(step.operands.size());
            for (const Operand& operand : step.operands) {
                if (operand.from == Operand::INPUT)
                    stacks[i].emplace_back(THPVariable_Unpack(args[operand.index]));
                else
                    stacks[i].push_back(operand.constant);
            }
        }
        pybind11::gil_scoped_release other_threads_run;
        for (size_t i = 0; i < stacks.size(); ++i) {
            const Step& step = (*program.steps)[i];
            for (size_t j = 0; j < step.operands.size(); ++j)
                if (step.operands[j].from == Operand::RESULT) stacks[i][j] = results[step.operands[j].index];
            step.operator_.callBoxed(stacks[i]);
            results.push_back(std::move(stacks[i].back()).toTensor());
        }
    }
    if (program.one) return THPVariable_Wrap(results[(*program.outputs)[0]]);
    PyObject* made = PyTuple_New(static_cast<Py_ssize_t>(program.outputs->size()));
    for (size_t i = 0; made != nullptr && i < program.outputs->size(); ++i)
        PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(i), THPVariable_Wrap(results[(*program.outputs)[i]]));
    return made;
    END_HANDLE_TH_ERRORS
}

// One step from (operator, overload, operands), an operand (from, value) for each argument of the operator.
inline Step step_of(PyObject* described) {
    const char *name, *overload;
    PyObject* operands;
    if (!PyArg_ParseTuple(described, "ssO!", &name, &overload, &PyTuple_Type, &operands)) throw python_error();
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const auto& arguments = handle.schema().arguments();
    TORCH_CHECK(arguments.size() == static_cast<size_t>(PyTuple_GET_SIZE(operands)) && handle.schema().returns().size() == 1,
                name, ": takes ", arguments.size(), " arguments");
    Step step{handle, {}};
    for (size_t i = 0; i < arguments.size(); ++i) {
        long from;
        PyObject* value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(operands, static_cast<Py_ssize_t>(i)), "lO", &from, &value)) throw python_error();
        Operand operand{static_cast<Operand::From>(from)};
        if (from == Operand::CONSTANT) {
            operand.constant = constant_of(value, *arguments[i].type());
        } else if (from == Operand::DEFAULT) {
            TORCH_CHECK(arguments[i].default_value().has_value(), name, ": ", arguments[i].name(), " has no default");
            operand.constant = *arguments[i].default_value();
        } else {
            operand.index = PyLong_AsSize_t(value);
        }
        if (PyErr_Occurred()) throw python_error();
        step.operands.push_back(std::move(operand));
    }
    return step;
}

// Program(count, steps, outputs, one)
inline PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject*) {
    HANDLE_TH_ERRORS
    Py_ssize_t count;
    PyObject *steps, *outputs;
    int one;
    if (!PyArg_ParseTuple(args, "nO!O!p", &count, &PyTuple_Type, &steps, &PyTuple_Type, &outputs, &one)) return nullptr;
    auto made = std::make_unique<std::vector<Step>>();
    auto out = std::make_unique<std::vector<size_t>>();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); ++i) made->push_back(step_of(PyTuple_GET_ITEM(steps, i)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) out->push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(outputs, i)));
    if (PyErr_Occurred()) return nullptr;
    auto* self = reinterpret_cast<Program*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->call = program_call;
    self->count = count;
    self->steps = made.release();
    self->outputs = out.release();
    self->one = one != 0;
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

inline void program_dealloc(PyObject* self) {
    delete reinterpret_cast<Program*>(self)->steps;
    delete reinterpret_cast<Program*>(self)->outputs;
    Py_TYPE(self)->tp_free(self);
}

inline PyTypeObject ProgramType = [] {
    PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "kernelworks.native.Program";
    t.tp_basicsize = sizeof(Program);
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
    t.tp_vectorcall_offset = offsetof(Program, call);
    t.tp_call = PyVectorcall_Call;
    t.tp_new = program_new;
    t.tp_dealloc = program_dealloc;
    return t;
}();

}  // namespace kw
