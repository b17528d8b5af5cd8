// A forward that autograd records: a node of torch's graph whose backward is a plan of the op.
//
// What a node does is what the autograd.Function of autograd.py does; a backward that is not plain (a derivative of it
// is asked for, a transform or a mode is at work, a gradient is no plain memory) goes where that one goes, too.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#ifdef KW_COMPILED_AUTOGRAD
#include <torch/csrc/dynamo/compiled_autograd.h>
#endif

#include <type_traits>

#include "entry.hpp"

namespace kw {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePointer = std::decay_t<decltype(std::declval<torch::autograd::Edge>().function)>;

// Where an argument of the backward comes from.
struct Source {
    enum From : long { GRADIENT = 0, INPUT = 1, OUTPUT = 2, OTHER = 3, NEEDS = 4 } from;
    long index;        // of an output, or of an argument of the forward
    bool optional;     // a gradient that may be None; others are zeros where none flows in
    uint64_t readers;  // of an input: the gradients, a bit each, whose value depends on it
    long unless;       // the argument with which, where it is True, none does; -1 where there is none such
};

// How an op is recorded; made once by autograd.py, and kept by every node.
struct Recipe {
    PyObject_HEAD
    Entry* entry;
    std::string* name;
    PyObject *to_record, *to_torch, *from_torch;  // or None
    PyObject* miss;                                       // miss(args of the backward, kernel)
    std::vector<Source>* sources;
    std::vector<Py_ssize_t>* edges;  // the arguments that have gradients, in the order in which the backward returns them
    std::vector<bool>* flows;        // for each output: whether it is differentiable
};
extern PyTypeObject RecipeType;

// An op's forward with its recording: takes the forward's arguments by position.
struct Recorder {
    PyObject_HEAD
    vectorcallfunc call;
    Recipe* recipe;
    PyObject* kernel;
};
extern PyTypeObject RecorderType;

// Ends what it holds where the scope ends; Python's lock is held.
class Scoped {
  public:
    explicit Scoped(PyObject* stolen = nullptr) : held_(stolen) {}
    Scoped(const Scoped&) = delete;
    Scoped& operator=(const Scoped&) = delete;
    ~Scoped() { Py_XDECREF(held_); }
    PyObject* get() const { return held_; }
    void reset(PyObject* stolen) { Py_XDECREF(std::exchange(held_, stolen)); }
    PyObject* release() { return std::exchange(held_, nullptr); }
    explicit operator bool() const { return held_ != nullptr; }

  private:
    PyObject* held_;
};

[[noreturn]] inline void thrown() {  // what Python raised, as an exception that the engine hands on
    python_error error;
    error.persist();
    throw error;
}

// What a node knows beside tensors.
struct Kept {
    Recipe* recipe;
    PyObject* kernel;               // a name or None
    PyObject* others = nullptr;  // a tuple as long as the forward's arguments, None for tensors

    Kept(Recipe* recipe, PyObject* kernel) : recipe(recipe), kernel(Py_NewRef(kernel)) {
        Py_INCREF(reinterpret_cast<PyObject*>(recipe));
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() {  // by one who may not hold Python's lock
        if (!Py_IsInitialized()) return;
        pybind11::gil_scoped_acquire lock;
        Py_XDECREF(others);
        Py_DECREF(kernel);
        Py_DECREF(reinterpret_cast<PyObject*>(recipe));
    }

    // The gradients, from a tensor for each source that is one, and which of them are wanted.
    variable_list gradients(const std::vector<at::Tensor>& tensors, const std::vector<bool>& needs) const {
        pybind11::gil_scoped_acquire lock;
        const auto& sources = *recipe->sources;
        variable_list results(needs.size());
        Scoped args(PyTuple_New(static_cast<Py_ssize_t>(sources.size())));
        if (!args) thrown();
        for (size_t i = 0; i < sources.size(); ++i) {
            PyObject* value = argument(sources[i], tensors[i], needs);
            if (value == nullptr) thrown();
            PyTuple_SET_ITEM(args.get(), static_cast<Py_ssize_t>(i), value);
        }
        Scoped result(called(args.get()));
        if (!result) thrown();
        for (size_t i = 0; i < results.size(); ++i) {
            if (!needs[i]) continue;
            PyObject* one = PyTuple_Check(result.get()) ? PyTuple_GetItem(result.get(), static_cast<Py_ssize_t>(i))
                                                        : (results.size() == 1 ? result.get() : nullptr);
            if (one == nullptr && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "the backward returned no tuple");
            if (one == nullptr) thrown();
            if (one == Py_None) continue;
            if (!is_tensor(one)) {
                PyErr_SetString(PyExc_TypeError, "the backward returned what is no tensor");
                thrown();
            }
            results[i] = THPVariable_Unpack(one);
        }
        return results;
    }

  private:
    PyObject* argument(const Source& source, const at::Tensor& tensor, const std::vector<bool>& needs) const {
        if (source.from == Source::OTHER) return Py_NewRef(PyTuple_GET_ITEM(others, source.index));
        if (source.from != Source::NEEDS) return tensor.defined() ? THPVariable_Wrap(tensor) : Py_NewRef(Py_None);
        PyObject* list = PyList_New(static_cast<Py_ssize_t>(needs.size()));
        for (size_t i = 0; list != nullptr && i < needs.size(); ++i)
            PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), Py_NewRef(needs[i] ? Py_True : Py_False));
        return list;
    }

    PyObject* called(PyObject* args) const {
        if (!c10::GradMode::is_enabled() && !world.watched(c10::impl::tls_local_dispatch_key_set())) {
            Key key(Key::BACKWARD);
            bool valid = true;
            for (Py_ssize_t i = 0; valid && i < PyTuple_GET_SIZE(args); ++i) valid = key.value(PyTuple_GET_ITEM(args, i));
            valid = valid && key.value(kernel) && key.value(Py_None) && key.threads();
            if (const Plan* found = valid ? recipe->entry->table->find(key) : nullptr; found != nullptr) {
                Scoped plan(Py_NewRef(found->whole));
                return PyObject_Call(found->call, args, nullptr);
            }
        }
        PyObject* given[] = {args, kernel};
        return PyObject_Vectorcall(recipe->miss, given, 2, nullptr);
    }
};

struct Recorded final : Node {
    std::shared_ptr<Kept> kept;
    std::vector<SavedVariable> saved;  // one for each source, empty for those that are none
    std::vector<at::Tensor> spared;    // inputs that no wanted gradient depends on: they say a shape
    bool freed = false;

    Recorded(Recipe* recipe, PyObject* kernel) : kept(std::make_shared<Kept>(recipe, kernel)) {
        saved.resize(recipe->sources->size());
        spared.resize(recipe->sources->size());
    }

    std::string name() const override { return *kept->recipe->name; }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto& one : saved) one.reset_data();
        for (auto& one : spared) one.reset();
        freed = true;
    }

    variable_list apply(variable_list&& gradients) override {
        bool any = false;
        for (const auto& gradient : gradients) any = any || gradient.defined();
        auto tensors = held();
        if (!any) return variable_list(num_outputs());
        const auto& sources = *kept->recipe->sources;
        for (size_t i = 0; i < sources.size(); ++i)
            if (sources[i].from == Source::GRADIENT) tensors[i] = flowing(sources[i], gradients);
        return kept->gradients(tensors, needs());
    }

#ifdef KW_COMPILED_AUTOGRAD
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
    variable_list apply_with_saved(const variable_list& inputs, torch::dynamo::autograd::SwapSavedVariables& swap) override;
#endif

  private:
    std::vector<at::Tensor> held() {
        const auto& sources = *kept->recipe->sources;
        std::vector<at::Tensor> tensors(sources.size());
        std::lock_guard<std::mutex> lock(mutex_);
        TORCH_CHECK(!freed, torch::autograd::ERR_BACKWARD_TWICE);
        for (size_t i = 0; i < sources.size(); ++i) {
            if (sources[i].from == Source::INPUT)
                tensors[i] = spared[i].defined() ? spared[i] : saved[i].unpack();
            else if (sources[i].from == Source::OUTPUT)
                tensors[i] = saved[i].unpack(getptr());
        }
        return tensors;
    }

    std::vector<bool> needs() const {
        std::vector<bool> found(num_outputs());
        for (size_t i = 0; i < found.size(); ++i) found[i] = task_should_compute_output(i);
        return found;
    }

    // The gradient of one of the forward's outputs. The node's inputs are the differentiable ones among them.
    at::Tensor flowing(const Source& source, const variable_list& gradients) const {
        size_t at = place(*kept->recipe, source);
        if (at >= gradients.size()) return {};
        if (gradients[at].defined() || source.optional) return gradients[at];
        return input_metadata(static_cast<uint32_t>(at)).zeros_like();
    }

    static size_t place(const Recipe& recipe, const Source& source) {
        size_t at = 0;
        for (long i = 0; i < source.index; ++i) at += (*recipe.flows)[static_cast<size_t>(i)];
        return at;
    }
};

// Nodes are held by std::shared_ptr up to torch 2.12 and by torch's own pointers from then on.
template <class Pointer, class Made = Recorded>
Pointer new_node(Recipe* recipe, PyObject* kernel) {
    if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
        return Pointer(new Made(recipe, kernel), [](auto* node) { deleteNode(node); });
    else
        return c10::make_intrusive<Made>(recipe, kernel);
}

// An output as the graph may hold it: one that is an input, or a view, is looked at anew.
inline at::Tensor on_its_own(const at::Tensor& output, PyObject* const* args, Py_ssize_t count) {
    bool known = output.is_view() || output.requires_grad();
    for (Py_ssize_t i = 0; i < count && !known; ++i)
        known = is_tensor(args[i]) && THPVariable_Unpack(args[i]).is_same(output);
    if (!known) return output;
    at::AutoDispatchBelowADInplaceOrView plain;
    return output.alias();
}

// The node of a forward: its edges, what it saves, and its place behind the outputs, which may be replaced.
inline void record(Recipe* recipe, PyObject* kernel, PyObject* const* args, Py_ssize_t count, std::vector<at::Tensor>& outputs) {
    auto pointer = new_node<NodePointer>(recipe, kernel);
    auto& node = static_cast<Recorded&>(*pointer);
    uint64_t wanted = 0;
    torch::autograd::edge_list edges;
    edges.reserve(recipe->edges->size());
    for (size_t i = 0; i < recipe->edges->size(); ++i) {
        PyObject* value = args[(*recipe->edges)[i]];
        if (value != Py_None && THPVariable_Unpack(value).requires_grad()) {
            wanted |= uint64_t{1} << i;
            edges.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(value)));
        } else {
            edges.emplace_back();
        }
    }
    node.set_next_edges(std::move(edges));
    for (size_t i = 0; i < outputs.size(); ++i) {
        if (!(*recipe->flows)[i] || !outputs[i].defined()) continue;
        outputs[i] = on_its_own(outputs[i], args, count);
        auto number = node.add_input_metadata(outputs[i]);
        torch::autograd::impl::set_gradient_edge(outputs[i], {pointer, number});
    }
    node.kept->others = PyTuple_New(count);
    if (node.kept->others == nullptr) throw python_error();
    for (Py_ssize_t i = 0; i < count; ++i)
        PyTuple_SET_ITEM(node.kept->others, i, Py_NewRef(is_tensor(args[i]) ? Py_None : args[i]));
    
    for (size_t i = 0; i < recipe->sources->size(); ++i) {
        const Source& source = (*recipe->sources)[i];
        if (source.from == Source::OUTPUT) {
            auto at = static_cast<size_t>(source.index);
            node.saved[i] = SavedVariable(at < outputs.size() ? outputs[at] : at::Tensor(), true);
        } else if (source.from == Source::INPUT && args[source.index] != Py_None) {
            const at::Tensor& input = THPVariable_Unpack(args[source.index]);
            bool unread = source.unless >= 0 && args[source.unless] == Py_True;
            if (!unread && source.readers & wanted) {
                node.saved[i] = SavedVariable(input, false);
            } else {
                // What no gradient ever depends on is a shape and a dtype, and keeps no memory.
                at::Tensor shape = source.readers && !unread ? input.detach() : at::empty({}, input.options()).expand(input.sizes());
                node.spared[i] = shape.set_requires_grad(input.requires_grad());
            }
        }
    }
}

}  // namespace kw
