// Program: a few of torch's operators one after another, with all arguments but the tensors fixed; called as torch's
// functions in Python call them (autograd, hooks, warnings and errors are torch's), less the parsing of arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <vector>

namespace kw {

struct Operand {
    enum From : long { INPUT = 0, RESULT = 1, CONSTANT = 2, DEFAULT = 3 } from;
    size_t index = 0;      // of an argument of the call, or of a step before
    c10::IValue constant;  // or the default
    std::vector<int64_t> sizes{};  // the same where it is a list of them
};

using Tensors = c10::SmallVector<at::Tensor, 4>;

// One operator's call. `inputs` are the call's arguments (undefined where they are no tensors), `results` those of the
// steps before.
class Step {
  public:
    explicit Step(std::vector<Operand> operands) : operands_(std::move(operands)) {}
    virtual ~Step() = default;
    virtual at::Tensor call(const Tensors& inputs, const Tensors& results) const = 0;

  protected:
    const at::Tensor& tensor(size_t i, const Tensors& inputs, const Tensors& results) const {
        return operands_[i].from == Operand::INPUT ? inputs[operands_[i].index] : results[operands_[i].index];
    }
    std::vector<Operand> operands_;
};

// Any operator that returns a tensor, its arguments as torch's interpreters hand them over.
class BoxedStep final : public Step {
  public:
    BoxedStep(c10::OperatorHandle handle, std::vector<Operand> operands) : Step(std::move(operands)), handle_(handle) {}

    at::Tensor call(const Tensors& inputs, const Tensors& results) const override {
        torch::jit::Stack stack;
        stack.reserve(operands_.size());
        for (size_t i = 0; i < operands_.size(); ++i) {
            if (operands_[i].from == Operand::INPUT || operands_[i].from == Operand::RESULT)
                stack.emplace_back(tensor(i, inputs, results));
            else
                stack.push_back(operands_[i].constant);
        }
        handle_.callBoxed(stack);
        return std::move(stack.back()).toTensor();
    }

  private:
    c10::OperatorHandle handle_;
};

// An operator whose arguments have these types in C++: a third of a microsecond less.
template <class... Arguments>
class TypedStep final : public Step {
  public:
    using Signature = at::Tensor(Arguments...);
    TypedStep(const c10::OperatorHandle& handle, std::vector<Operand> operands)
        : Step(std::move(operands)), handle_(handle.typed<Signature>()) {}

    at::Tensor call(const Tensors& inputs, const Tensors& results) const override {
        return called(inputs, results, std::index_sequence_for<Arguments...>{});
    }

  private:
    template <size_t... I>
    at::Tensor called(const Tensors& inputs, const Tensors& results, std::index_sequence<I...>) const {
        return handle_.call(argument<std::decay_t<Arguments>>(I, inputs, results)...);
    }

    template <class T>
    decltype(auto) argument(size_t i, const Tensors& inputs, const Tensors& results) const {
        if constexpr (std::is_same_v<T, at::Tensor>) {
            return tensor(i, inputs, results);
        } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
            bool given = operands_[i].from == Operand::INPUT || operands_[i].from == Operand::RESULT;
            return given ? std::optional<at::Tensor>(tensor(i, inputs, results)) : std::nullopt;
        } else if constexpr (std::is_same_v<T, c10::SymIntArrayRef>) {
            return c10::fromIntArrayRefKnownNonNegative(operands_[i].sizes);
        } else if constexpr (std::is_same_v<T, c10::string_view>) {
            return c10::string_view(operands_[i].constant.toStringRef());
        } else {
            return operands_[i].constant.template to<T>();
        }
    }

    c10::TypedOperatorHandle<Signature> handle_;
};

// The step for an operator; small ones whose time is that of their call have a type of their own.
inline std::unique_ptr<Step> new_step(const c10::OperatorHandle& handle, std::vector<Operand> operands) {
    using T = const at::Tensor&;
    using O = const std::optional<at::Tensor>&;
    using F = std::optional<double>;
    std::string name = c10::toString(handle.operator_name());
    try {
        if (name == "aten::gelu") return std::make_unique<TypedStep<T, c10::string_view>>(handle, operands);
        if (name == "aten::silu") return std::make_unique<TypedStep<T>>(handle, operands);
        if (name == "aten::mul.Tensor") return std::make_unique<TypedStep<T, T>>(handle, operands);
        if (name == "aten::linear") return std::make_unique<TypedStep<T, T, O>>(handle, operands);
        if (name == "aten::rms_norm") return std::make_unique<TypedStep<T, c10::SymIntArrayRef, O, F>>(handle, operands);
        if (name == "aten::softmax.int")
            return std::make_unique<TypedStep<T, int64_t, std::optional<at::ScalarType>>>(handle, operands);
        if (name == "aten::scaled_dot_product_attention")
            return std::make_unique<TypedStep<T, T, T, O, double, bool, F, bool>>(handle, operands);
    } catch (const c10::Error&) {  // another torch has it otherwise
    }
    return std::make_unique<BoxedStep>(handle, std::move(operands));
}

struct Program {
    PyObject_HEAD
    vectorcallfunc call;
    Py_ssize_t count;
    std::vector<std::unique_ptr<Step>>* steps;
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
        case c10::TypeKind::NumberType:
            if (PyFloat_Check(value)) return c10::IValue(PyFloat_AsDouble(value));
            if (PyLong_Check(value)) return c10::IValue(static_cast<int64_t>(PyLong_AsLongLong(value)));
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

// Python's lock let go of, as torch's own functions do while they work.
class Unlocked {
  public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() { PyEval_RestoreThread(state_); }
    Unlocked(const Unlocked&) = delete;

  private:
    PyThreadState* state_;
};

inline PyObject* program_call(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
    HANDLE_TH_ERRORS
    const auto& program = *reinterpret_cast<Program*>(self);
    if (PyVectorcall_NARGS(flagged) != program.count || (names != nullptr && PyTuple_GET_SIZE(names)))
        return PyErr_Format(PyExc_TypeError, "takes %zd arguments by position", program.count);
    Tensors results, inputs;
    for (Py_ssize_t i = 0; i < program.count; ++i)  // taken while Python's lock is held
        inputs.push_back(is_tensor(args[i]) ? THPVariable_Unpack(args[i]) : at::Tensor());
    {
        Unlocked other_threads_run;
        for (const auto& step : *program.steps) results.push_back(step->call(inputs, results));
    }
    if (program.one) return THPVariable_Wrap(std::move(results[(*program.outputs)[0]]));
    PyObject* made = PyTuple_New(static_cast<Py_ssize_t>(program.outputs->size()));
    for (size_t i = 0; made != nullptr && i < program.outputs->size(); ++i)
        PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(i), THPVariable_Wrap(results[(*program.outputs)[i]]));
    return made;
    END_HANDLE_TH_ERRORS
}

// One step from (operator, overload, operands), an operand (from, value) for each argument of the operator.
inline std::unique_ptr<Step> step_of(PyObject* described) {
    const char *name, *overload;
    PyObject* operands;
    if (!PyArg_ParseTuple(described, "ssO!", &name, &overload, &PyTuple_Type, &operands)) throw python_error();
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const auto& arguments = handle.schema().arguments();
    TORCH_CHECK(arguments.size() == static_cast<size_t>(PyTuple_GET_SIZE(operands)) && handle.schema().returns().size() == 1,
                name, ": takes ", arguments.size(), " arguments");
    std::vector<Operand> found;
    for (size_t i = 0; i < arguments.size(); ++i) {
        long from;
        PyObject* value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(operands, static_cast<Py_ssize_t>(i)), "lO", &from, &value)) throw python_error();
        Operand operand{static_cast<Operand::From>(from)};
        if (from == Operand::CONSTANT) {
            operand.constant = constant_of(value, *arguments[i].type());
            if (operand.constant.isIntList()) operand.sizes = operand.constant.toIntVector();
        } else if (from == Operand::DEFAULT) {
            TORCH_CHECK(arguments[i].default_value().has_value(), name, ": ", arguments[i].name(), " has no default");
            operand.constant = *arguments[i].default_value();
        } else {
            operand.index = PyLong_AsSize_t(value);
        }
        if (PyErr_Occurred()) throw python_error();
        found.push_back(std::move(operand));
    }
    return new_step(handle, std::move(found));
}

// Program(count, steps, outputs, one)
inline PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject*) {
    HANDLE_TH_ERRORS
    Py_ssize_t count;
    PyObject *steps, *outputs;
    int one;
    if (!PyArg_ParseTuple(args, "nO!O!p", &count, &PyTuple_Type, &steps, &PyTuple_Type, &outputs, &one)) return nullptr;
    auto made = std::make_unique<std::vector<std::unique_ptr<Step>>>();
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
