// What calls that may share a plan agree in, as bytes; and which calls a kernel of ours may serve at all.
//
// The two questions are those of contract/tensors.py, asked of the same things: of a tensor, whether its class is Tensor or
// Parameter and its dispatch keys are those of plain memory (the mask comes from there); of the world, whether a
// mode, a profiler, a transform of torch.func, a level of forward-mode AD or a trace is at work.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

// What torch's own header of this needs is not always installed.
namespace at::functorch {
struct DynamicLayer;
const std::vector<DynamicLayer>& getDynamicLayerStack();
}  // namespace at::functorch

namespace kw {

// What isinstance says, which costs a tenth of a microsecond for anything but a tensor: it asks the tensors' metaclass.
inline bool is_tensor(PyObject* value) {
    return PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

// A global of a module of torch's in Python. Looked up where its module has changed since the last time: the look-up
// itself would touch a dozen lines of memory that a call has no other use for.
class Global {
  public:
    Global() = default;
    Global(PyObject* module, const char* name)  // as long as the process lives
        : names_(Py_NewRef(PyModule_GetDict(module))), name_(PyUnicode_InternFromString(name)) {}

    template <class Test>
    bool is(Test test) {
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        uint64_t version = reinterpret_cast<PyDictObject*>(names_)->ma_version_tag;
#pragma GCC diagnostic pop
        if (version == seen_) return held_;
        seen_ = version;
#endif
        PyObject* value = PyDict_GetItemWithError(names_, name_);
        held_ = value != nullptr && test(value);
        return held_;
    }

  private:
    PyObject *names_ = nullptr, *name_ = nullptr;
    uint64_t seen_ = 0;
    bool held_ = false;
};

struct World {
    uint64_t memory = 0;  // dispatch keys of plain memory
    Global profiler, forward_ad;

    // Whether somebody has to see torch's own operators, or ours as one of torch's. In doubt, yes.
    bool watched(const c10::impl::LocalDispatchKeySet& local) {
        if (c10::impl::TorchDispatchModeTLS::any_modes_set() || at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
            !at::functorch::getDynamicLayerStack().empty() || local.included_.has(c10::DispatchKey::Tracer))
            return true;
        return !profiler.is([](PyObject* on) { return on == Py_False; }) ||
               !forward_ad.is([](PyObject* level) { return PyLong_AsLong(level) < 0; });
    }

    bool plain(const at::Tensor& t) const { return (t.key_set().raw_repr() & ~memory) == 0; }
};

inline World world;

class Key {
  public:
    static constexpr size_t FEW = 1024, MOST = size_t{1} << 22;
    static constexpr int64_t MOST_TEXT = 200;  // of a name such as "tanh" or "avx512+avx2"
    // The first letters of what keys are of, in Python's words.
    static constexpr char FORWARD = 'f', TRAINING = 't', BACKWARD = 'b';

    explicit Key(char kind) { add(kind); }

    // False for what cannot be described so: an object of another class, a tensor that is no plain memory.
    bool value(PyObject* v) {
        if (v == Py_None) return add('0');
        if (THPVariable_CheckExact(v)) return tensor(THPVariable_Unpack(v));
        if (PyBool_Check(v)) return add('b') && add(v == Py_True);
        if (PyFloat_CheckExact(v)) return add('f') && add(PyFloat_AS_DOUBLE(v));
        if (PyLong_Check(v)) {
            int over = 0;
            int64_t number = PyLong_AsLongLongAndOverflow(v, &over);
            return over == 0 && add(PyLong_CheckExact(v) ? 'i' : 'I') && add(Py_TYPE(v)) && add(number);
        }
        if (PyUnicode_CheckExact(v)) {
            Py_ssize_t size = 0;
            const char* text = PyUnicode_AsUTF8AndSize(v, &size);
            if (text == nullptr) PyErr_Clear();
            return text != nullptr && size <= MOST_TEXT && add('s') && add(size) && bytes_of(text, static_cast<size_t>(size));
        }
        // Of a subclass: its class tells it from the number that it equals.
        if (PyFloat_Check(v)) return add('F') && add(Py_TYPE(v)) && add(PyFloat_AS_DOUBLE(v));
        if (PyList_CheckExact(v) || PyTuple_CheckExact(v)) {
            Py_ssize_t size = PySequence_Fast_GET_SIZE(v);
            add('L'), add(size);
            PyObject** items = PySequence_Fast_ITEMS(v);
            for (Py_ssize_t i = 0; i < size; ++i)
                if (!value(items[i])) return false;
            return true;
        }
        return false;
    }

    bool free() { return add('s') && add(Py_ssize_t{1}) && add('*'); }  // as "*", which op.py has in the value's place

    // A tensor with elements and no memory (a storage that was let go) is not described.
    bool tensor(const at::Tensor& t) {
        if (!t.defined()) return add('0');
        if (!world.plain(t)) return false;
        const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
        if (impl->numel() > 0 && (!impl->has_storage() || impl->storage().data() == nullptr)) return false;
        wants_ = wants_ || t.requires_grad();
        auto sizes = impl->sizes();
        bool dense = impl->is_contiguous();
        if (sizes.size() > 127) return false;
        auto device = impl->device();
        on_cpu_ = on_cpu_ || device.is_cpu();
        add(std::array<char, 6>{'T', static_cast<char>(t.scalar_type()), static_cast<char>(device.type()),
                                static_cast<char>(device.index()), static_cast<char>(sizes.size()), dense});
        numbers(sizes);
        if (!dense) numbers(impl->strides());
        return length_ < MOST;
    }

    template <class T>
    bool add(T value) {
        if (length_ + sizeof value > room_ && !wider(sizeof value)) return false;
        std::memcpy(bytes_ + length_, &value, sizeof value);  // of a size that is known: one store
        length_ += sizeof value;
        return true;
    }

    // A recorded call's plan depends on which arguments ask for their gradients, a bit each; added last.
    bool recorded(uint64_t wanted) { return add(wanted); }
    void is(char letter) { bytes_[0] = letter; }
    // Behind all arguments: work that lies elsewhere is not shared among threads.
    bool threads() { return !on_cpu_ || add(at::get_num_threads()); }
    bool wants() { return std::exchange(wants_, false); }  // whether a tensor since the last call asks for its gradient
    std::string_view view() const { return {bytes_, length_}; }

  private:
    char few_[FEW];
    std::unique_ptr<char[]> many_;
    char* bytes_ = few_;
    size_t length_ = 0, room_ = FEW;
    bool wants_ = false, on_cpu_ = false;

    bool bytes_of(const void* from, size_t size) {
        if (length_ + size > room_ && !wider(size)) return false;
        std::memcpy(bytes_ + length_, from, size);
        length_ += size;
        return true;
    }

    bool numbers(c10::IntArrayRef values) {
        if (length_ + values.size() * sizeof(int64_t) > room_ && !wider(values.size() * sizeof(int64_t))) return false;
        for (int64_t value : values) add(value);  // few: quicker than a call of memcpy
        return true;
    }

    [[gnu::noinline]] bool wider(size_t size) {
        if (length_ + size > MOST) return false;
        while (room_ < length_ + size) room_ *= 4;
        std::unique_ptr<char[]> larger(new char[room_]);
        std::memcpy(larger.get(), bytes_, length_);
        many_ = std::move(larger);
        bytes_ = many_.get();
        return true;
    }
};

// Whether two tensors may share memory: whether the ranges from their first to their last element meet.
inline bool meet(const at::Tensor& a, const at::Tensor& b) {
    if (a.numel() == 0 || b.numel() == 0) return false;
    auto range = [](const at::Tensor& t) {
        int64_t last = 0;
        for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
        const char* first = static_cast<const char*>(t.const_data_ptr());
        return std::pair{first, first + (last + 1) * t.element_size()};
    };
    auto [a0, a1] = range(a);
    auto [b0, b1] = range(b);
    return a0 < b1 && b0 < a1;
}

}  // namespace kw
