// A node under compiled autograd: its gradients are one call in the graph that is compiled, and no more is said of them.
#pragma once

#include "node.hpp"

#ifdef KW_COMPILED_AUTOGRAD
namespace kw {

// What tells this call's graph from another's: everything that is no tensor.
inline void Recorded::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const {
    args.collect(reinterpret_cast<uint64_t>(kept->recipe));
    std::string said;
    {
        pybind11::gil_scoped_acquire lock;
        for (PyObject* one : {kept->kernel, kept->others}) {
            Scoped text(PyObject_Repr(one));
            if (!text) thrown();
            said += PyUnicode_AsUTF8(text.get());
        }
    }
    args.collect(said);
    for (size_t i = 0; i < saved.size(); ++i) {
        args.collect(saved[i], (*kept->recipe->sources)[i].from == Source::OUTPUT);
        args.collect(spared[i]);
    }
}

inline variable_list Recorded::apply_with_saved(
    const variable_list& inputs, torch::dynamo::autograd::SwapSavedVariables& swap) {
    using namespace torch::dynamo::autograd;
    for (auto& one : saved) swap.before(one);
    for (auto& one : spared) swap.before(one);
    std::vector<at::IValue> values;
    std::vector<at::TypePtr> types;
    for (const auto& tensor : held()) {
        values.push_back(tensor.defined() ? at::IValue(tensor) : at::IValue());
        types.push_back(tensor.defined() ? at::TypePtr(at::TensorType::get()) : at::TypePtr(at::NoneType::get()));
    }
    struct Shape {
        std::vector<int64_t> sizes;
        at::TensorOptions options;
    };
    std::vector<Shape> shapes;  // of what may not flow in
    for (uint32_t i = 0; i < num_inputs(); ++i)
        shapes.push_back({c10::asIntArrayRefSlow(input_metadata(i).shape_as_dim_vector(), __FILE__, __LINE__).vec(),
                          input_metadata(i).options()});
    auto call = [kept = kept, wanted = needs(), shapes](const variable_list& gradients, const std::vector<at::IValue>& held) {
        const auto& sources = *kept->recipe->sources;
        std::vector<at::Tensor> tensors(sources.size());
        for (size_t i = 0; i < sources.size(); ++i) {
            if (sources[i].from != Source::GRADIENT) {
                if (held[i].isTensor()) tensors[i] = held[i].toTensor();
                continue;
            }
            size_t at = place(*kept->recipe, sources[i]);
            if (at >= gradients.size()) continue;
            tensors[i] = gradients[at].defined() || sources[i].optional ? gradients[at]
                                                                         : at::zeros(shapes[at].sizes, shapes[at].options);
        }
        return kept->gradients(tensors, wanted);
    };
    const auto& compiler = getPyCompilerInterface();
    auto metadata = IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(get_input_metadata(next_edges()));
    auto bound = compiler->bind_function(swap.get_py_compiler(), name(), call, types, true, false);
    auto results = compiler->call_function(swap.get_py_compiler(), "apply_functional", bound, inputs, values, metadata);
    for (auto& one : saved) swap.after(one);
    for (auto& one : spared) swap.after(one);
    return results;
}

}  // namespace kw
#endif
