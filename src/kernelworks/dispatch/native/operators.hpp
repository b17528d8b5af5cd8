// Operator: one of an op's passes as torch's dispatcher calls it on CPU tensors, in a compiled program above all. It is
// in front of the kernels in Python (torch_library.py), which serve what is not met here: calls that no plan is there
// for yet, tensors that are no plain memory, transforms, and what autograd is to record.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "node.hpp"
#include "recorder.hpp"

namespace kw {

// What the kernels of one pass know. Held by Python's object and by both kernels.
struct Served {
    char letter;        // of its keys
    Table* table;
    PyObject* run;      // run(plan's run, *args), which torch's compiler does not look into
    PyObject* kernel;   // kernel(*args, the name of a kernel of the op), in Python
    PyObject* recorded; // recorded(dispatch keys, *args, the name), in Python, or None
    PyObject* to_torch; // or None
    PyObject* laid;     // laid(result, *args), or None

    Served(char letter, PyObject* table, PyObject* run, PyObject* kernel, PyObject* recorded, PyObject* to_torch, PyObject* laid)
        : letter(letter), table(reinterpret_cast<Table*>(Py_NewRef(table))), run(Py_NewRef(run)), kernel(Py_NewRef(kernel)),
          recorded(Py_NewRef(recorded)), to_torch(Py_NewRef(to_torch)), laid(Py_NewRef(laid)) {}
    Served(const Served&) = delete;
    Served& operator=(const Served&) = delete;
    ~Served() {
        if (!Py_IsInitialized()) return;
        pybind11::gil_scoped_acquire lock;
        for (PyObject* held : {reinterpret_cast<PyObject*>(table), run, kernel, recorded, to_torch, laid}) Py_DECREF(held);
    }
};

struct Operator {
    PyObject_HEAD
    torch::Library* library;  // takes the kernels back where it ends
};
extern PyTypeObject OperatorType;

// ---------------------------------------------------------------- values

template <class Values, class Make>
PyObject* listed(const Values& values, Make make) {
    PyObject* made = PyList_New(static_cast<Py_ssize_t>(values.size()));
    for (size_t i = 0; made != nullptr && i < values.size(); ++i) PyList_SET_ITEM(made, static_cast<Py_ssize_t>(i), make(values[i]));
    return made;
}

inline PyObject* in_python(const c10::IValue& value) {
    auto tensor = [](const at::Tensor& t) { return t.defined() ? THPVariable_Wrap(t) : Py_NewRef(Py_None); };
    if (value.isTensor()) return tensor(value.toTensor());
    if (value.isNone()) return Py_NewRef(Py_None);
    if (value.isBool()) return PyBool_FromLong(value.toBool());
    if (value.isInt()) return PyLong_FromLongLong(value.toInt());
    if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
    if (value.isString()) return PyUnicode_FromStringAndSize(value.toStringRef().data(), std::ssize(value.toStringRef()));
    if (value.isBoolList()) return listed(value.toBoolList().vec(), [](bool b) { return PyBool_FromLong(b); });
    if (value.isIntList()) return listed(value.toIntVector(), [](int64_t i) { return PyLong_FromLongLong(i); });
    if (value.isTensorList()) return listed(value.toTensorVector(), tensor);
    PyErr_Format(PyExc_TypeError, "an argument of this kind is not known here: %s", value.tagKind().c_str());
    return nullptr;
}

// The last `count` values of a stack, as Python's.
class Given {
  public:
    Given(const torch::jit::Stack& stack, size_t count) : values_(count + 1) {
        for (size_t i = 0; i < count; ++i)
            if ((values_[i + 1] = in_python(torch::jit::peek(stack, i, count))) == nullptr) thrown();
    }
    Given(const Given&) = delete;
    Given& operator=(const Given&) = delete;
    ~Given() {
        for (PyObject* value : values_) Py_XDECREF(value);
    }
    PyObject* const* data() const { return values_.data() + 1; }

    // A function of `first` and of `count` of them.
    PyObject* handed(PyObject* function, PyObject* first, size_t count) {
        values_[0] = Py_NewRef(first);
        return PyObject_Vectorcall(function, values_.data(), count + 1, nullptr);
    }

  private:
    c10::SmallVector<PyObject*, 16> values_;  // behind a place for one more
};

// ---------------------------------------------------------------- the kernels

// Below autograd.
struct ServedKernel final : c10::OperatorKernel {
    std::shared_ptr<Served> served;
    explicit ServedKernel(std::shared_ptr<Served> served) : served(std::move(served)) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
        pybind11::gil_scoped_acquire lock;
        size_t count = op.schema().arguments().size(), own = count - 1;  // `kernel` is the last
        std::vector<at::Tensor> outputs;
        auto take = [&](const Scoped& result) {
            if (!result) thrown();
            outputs.clear();
            TORCH_CHECK_TYPE(unpacked(result.get(), outputs), "a kernel must return a tensor or a tuple of tensors");
        };
        {
            Given given(*stack, count);
            if (const Plan* plan = planned(given, own); plan != nullptr) {
                Scoped whole(Py_NewRef(plan->whole));  // the table may be cleared meanwhile
                Scoped result(given.handed(served->run, plan->run, own));
                take(result);
                // Torch's functions lay out what they return as their inputs happen to lie.
                PyObject* then = served->to_torch != Py_None ? served->to_torch
                    : served->laid != Py_None && !contiguous(outputs, *stack, count) ? served->laid : nullptr;
                if (then != nullptr) {
                    Given again(*stack, count);
                    take(Scoped(again.handed(then, result.get(), own)));
                }
            } else {
                take(Scoped(PyObject_Vectorcall(served->kernel, given.data(), count, nullptr)));
            }
        }
        if (served->letter == Key::BACKWARD)
            for (auto& output : outputs) own_memory(output, *stack, count);
        torch::jit::drop(*stack, count);
        for (auto& output : outputs) stack->emplace_back(std::move(output));
    }

  private:
    const Plan* planned(const Given& given, size_t own) const {
        Key key(served->letter);
        for (size_t i = 0; i < own; ++i)
            if (!key.value(given.data()[i])) return nullptr;
        bool valid = key.value(given.data()[own]) && key.value(Py_None) && key.threads();
        const Plan* found = valid ? served->table->find(key) : nullptr;
        return found != nullptr && found->run != nullptr ? found : nullptr;
    }

    static bool contiguous(const std::vector<at::Tensor>& outputs, const torch::jit::Stack& stack, size_t count) {
        for (const auto& output : outputs)
            if (!output.is_contiguous()) return false;
        for (size_t i = 0; i < count; ++i) {
            const c10::IValue& value = torch::jit::peek(stack, i, count);
            if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_contiguous()) return false;
        }
        return true;
    }

    // A gradient may be a view of what flows in; what an operator returns may not.
    static void own_memory(at::Tensor& output, const torch::jit::Stack& stack, size_t count) {
        for (size_t i = 0; i < count; ++i) {
            const c10::IValue& value = torch::jit::peek(stack, i, count);
            if (value.isTensor() && value.toTensor().defined() && meet(output, value.toTensor())) {
                output = output.clone(at::MemoryFormat::Contiguous);
                return;
            }
        }
    }
};

// Above autograd: nothing is recorded where gradients are off or nobody asks for one.
struct RecordedKernel final : c10::OperatorKernel {
    std::shared_ptr<Served> served;
    explicit RecordedKernel(std::shared_ptr<Served> served) : served(std::move(served)) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
        size_t count = op.schema().arguments().size();
        {
            pybind11::gil_scoped_acquire lock;
            if (!passes(*stack, count)) {
                Given given(*stack, count);
                Scoped raw(PyLong_FromUnsignedLongLong(keys.raw_repr()));
                Scoped result(given.handed(served->recorded, raw.get(), count));
                if (!result) thrown();
                std::vector<at::Tensor> outputs;
                TORCH_CHECK_TYPE(unpacked(result.get(), outputs), "an op must return a tensor or a tuple of tensors");
                torch::jit::drop(*stack, count);
                for (auto& output : outputs) stack->emplace_back(std::move(output));
                return;
            }
        }
        // Autograd stays on below a backward: the torch kernel's may differentiate for itself.
        std::optional<at::AutoDispatchBelowAutograd> below;
        if (served->letter != Key::BACKWARD) below.emplace();
        op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    }

  private:
    // If the call names no kernel, autograd's kernel may take torch's own function: that is Python's to say.
    static bool passes(const torch::jit::Stack& stack, size_t count) {
        if (!torch::jit::peek(stack, count - 1, count).isString() || !at::functorch::getDynamicLayerStack().empty() ||
            c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::Tracer) ||
            !world.forward_ad.is([](PyObject* level) { return PyLong_AsLong(level) < 0; }))
            return false;
        if (!c10::GradMode::is_enabled()) return true;
        for (size_t i = 0; i < count; ++i) {
            const c10::IValue& value = torch::jit::peek(stack, i, count);
            if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad()) return false;
        }
        return true;
    }
};

// ---------------------------------------------------------------- Operator(...)

// Operator(name, what, table, run, kernel, recorded, to_torch, laid): of an operator of kernelworks' that torch knows, one
// without lists of tensors that writes nothing it is given.
inline PyObject* operator_new(PyTypeObject* type, PyObject* args, PyObject*) {
    HANDLE_TH_ERRORS
    const char *name, *what;
    PyObject *table, *run, *kernel, *recorded, *to_torch, *laid;
    if (!PyArg_ParseTuple(args, "ssO!OOOOO", &name, &what, &TableType, &table, &run, &kernel, &recorded, &to_torch, &laid))
        return nullptr;
    auto served = std::make_shared<Served>(what[0], table, run, kernel, recorded, to_torch, laid);
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "kernelworks", std::nullopt, __FILE__, __LINE__);
    auto add = [&](c10::DispatchKey key, auto functor) {
        library->impl(name, torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::move(functor))));
    };
    add(c10::DispatchKey::CPU, std::make_unique<ServedKernel>(served));
    if (recorded != Py_None) add(c10::DispatchKey::AutogradCPU, std::make_unique<RecordedKernel>(served));
    auto* self = reinterpret_cast<Operator*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->library = library.release();
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

inline void operator_dealloc(PyObject* self) {
    delete reinterpret_cast<Operator*>(self)->library;
    Py_TYPE(self)->tp_free(self);
}

inline PyTypeObject OperatorType = [] {
    PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "kernelworks.native.Operator";
    t.tp_basicsize = sizeof(Operator);
    t.tp_flags = Py_TPFLAGS_DEFAULT;
    t.tp_new = operator_new;
    t.tp_dealloc = operator_dealloc;
    return t;
}();

}  // namespace kw
