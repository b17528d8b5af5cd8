// Finds what an op does for a call: from arguments as they come to the number of a plan.
//
// A plan serves calls whose arguments agree in everything but their data: tensors in dtype, shape, strides and device,
// the rest in type and value. Building that key in Python costs more than finding it here. Called with Python's lock
// held, so no lock of its own.
//
// No plan is found for a tensor that has elements and no memory (a zero tensor, a wrapper), nor where the last argument,
// which is what the call writes into, shares memory with another: what must be done there is worked out in Python.
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "answer.hpp"

namespace {

struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using Table = std::unordered_map<std::string, int64_t, Hash, std::equal_to<>>;
// By numbers that are never given again: a caller may still hold that of a table which was dropped.
std::unordered_map<int64_t, Table> tables;
int64_t made = 0;

constexpr int64_t NONE = -1;
constexpr int FEW_BYTES = 2048;         // kept on the stack; lists of tensors take more
constexpr int MOST_BYTES = 1 << 22;
constexpr int MOST_DIMENSIONS = 16;
constexpr int MOST_TENSORS = 16;
constexpr size_t MOST_TEXT = 48;  // of a name such as "tanh"; with 16 bytes beside it below what a tensor may take

// The key's bytes. Not `valid` for an argument that is no tensor, number, name or None: such calls are not kept here.
struct Key {
    char few[FEW_BYTES];
    std::vector<char> many;
    char* bytes = few;
    int length = 0, room = FEW_BYTES;
    bool valid = true;
    struct Range {
        const char *begin, *end;
    } ranges[MOST_TENSORS];
    int tensors = 0;

    bool more() {
        if (room >= MOST_BYTES) return false;
        many.resize(static_cast<size_t>(room *= 4));
        if (bytes == few) std::memcpy(many.data(), few, static_cast<size_t>(length));
        bytes = many.data();
        return true;
    }

    template <class T>
    void add(T value) {
        std::memcpy(bytes + length, &value, sizeof value);
        length += static_cast<int>(sizeof value);
    }

    void tensor(const TVMFFIAny& any) {
        const DLTensor* t;
        if (any.type_index == kTVMFFIDLTensorPtr) {
            t = static_cast<const DLTensor*>(any.v_ptr);
        } else {
            t = reinterpret_cast<const DLTensor*>(reinterpret_cast<const char*>(any.v_obj) + sizeof(TVMFFIObject));
        }
        if (t->ndim > MOST_DIMENSIONS) {
            valid = false;
            return;
        }
        int64_t elements = 1, last = 0, expected = 1;
        for (int i = t->ndim - 1; i >= 0; --i) {
            elements *= t->shape[i];
            last += (t->shape[i] - 1) * (t->strides ? t->strides[i] : expected);
            expected *= t->shape[i];
        }
        const char* begin = static_cast<const char*>(t->data) + t->byte_offset;
        if (elements > 0 && t->data == nullptr) valid = false;
        if (tensors++ < MOST_TENSORS)
            ranges[tensors - 1] = {begin, elements > 0 ? begin + (last + 1) * ((t->dtype.bits * t->dtype.lanes + 7) / 8) : begin};
        add('T');
        add(t->dtype);
        add(t->device.device_type);
        add(t->device.device_id);
        add(t->ndim);
        for (int i = 0; i < t->ndim; ++i) add(t->shape[i]);
        for (int i = 0; i < t->ndim; ++i) add(t->strides ? t->strides[i] : int64_t{0});
    }

    // Its length first, so that no two lists of arguments give the same bytes.
    void text(const char* data, size_t size) {
        if (size > MOST_TEXT) {
            valid = false;
            return;
        }
        add('s');
        add(static_cast<int32_t>(size));
        std::memcpy(bytes + length, data, size);
        length += static_cast<int>(size);
    }

    Key(const kw::Args& args, int first) {
        for (int i = first; i < args.count && valid; ++i) {
            if (length > room - (64 + 16 * MOST_DIMENSIONS) && !(valid = more())) break;
            const TVMFFIAny& any = args.any[i];
            switch (any.type_index) {
                case kTVMFFIDLTensorPtr:
                case kTVMFFITensor: tensor(any); break;
                case kTVMFFINone: add('0'); break;
                case kTVMFFIInt: add('i'), add(any.v_int64); break;
                case kTVMFFIBool: add('b'), add(any.v_int64 != 0); break;
                case kTVMFFIFloat: add('f'), add(any.v_float64); break;
                case kTVMFFIRawStr: text(any.v_c_str, std::strlen(any.v_c_str)); break;
                case kTVMFFISmallStr: text(any.v_bytes, any.small_str_len); break;
                case kTVMFFIStr: {
                    auto* held = reinterpret_cast<const TVMFFIByteArray*>(
                        reinterpret_cast<const char*>(any.v_obj) + sizeof(TVMFFIObject));
                    text(held->data, held->size);
                    break;
                }
                default: valid = false;
            }
        }
    }
    std::string_view view() const { return {bytes, static_cast<size_t>(length)}; }

    // Whether the last tensor shares memory with one before it, or there are too many to say.
    bool crosses() const {
        if (tensors > MOST_TENSORS) return true;
        const Range& out = ranges[tensors - 1];
        for (int i = 0; i + 1 < tensors; ++i)
            if (ranges[i].begin < out.end && out.begin < ranges[i].end) return true;
        return false;
    }
};

}  // namespace

// A new table's number.
KW_ANSWER(table) {
    tables.try_emplace(made);
    return made++;
}

KW_ANSWER(drop) { return static_cast<int64_t>(tables.erase(args.integer(0))); }

// keep(table, plan, *arguments, out)
KW_ANSWER(keep) {
    Key key(args, 2);
    auto table = tables.find(args.integer(0));
    if (key.valid && table != tables.end()) table->second[std::string(key.view())] = args.integer(1);
    return key.valid;
}

// find(table, *arguments, out): the plan's number, or NONE
KW_ANSWER(find) {
    Key key(args, 1);
    if (!key.valid) return NONE;
    if (args.any[args.count - 1].type_index != kTVMFFINone && key.crosses()) return NONE;
    auto table = tables.find(args.integer(0));
    if (table == tables.end()) return NONE;
    auto found = table->second.find(key.view());
    return found == table->second.end() ? NONE : found->second;
}
