// Launches compiled GPU kernels: from Python's arguments straight to cuLaunchKernelEx.
//
// A launch *site* is one kernel with its compile-time constants. Triton compiles a site again for each specialisation
// of its arguments (element types, pointers aligned to 16 bytes, integers divisible by 16 or wider than 32 bits), so a
// site holds a table from specialisation to function. `launch` finds the function and goes, or answers UNKNOWN; then
// Python compiles, calls `load` and `bind`, and launches again. The driver is opened at run time: building this needs
// no CUDA toolkit.
#include <dlfcn.h>

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "answer.hpp"

namespace {

// ---------------------------------------------------------------- the driver's interface, as far as it is used

using CUresult = int;
using Handle = void*;

struct Attribute {  // CUlaunchAttribute
    int id;
    int pad;
    union {
        char bytes[64];
        int flag;
        unsigned cluster[3];
    };
};
struct Config {  // CUlaunchConfig
    unsigned grid[3], block[3], shared;
    Handle stream;
    Attribute* attributes;
    unsigned count;
};
enum { COOPERATIVE = 2, CLUSTER = 4, SPREAD = 5, SERIALIZATION = 6 };               // CUlaunchAttributeID
enum { STATIC_SHARED = 1, LOCAL_BYTES = 3, REGISTERS = 4, DYNAMIC_SHARED = 8, BIG_CLUSTER = 14 };  // CUfunction_attribute

struct Driver {
    CUresult (*context)(Handle*);
    CUresult (*set_context)(Handle);
    CUresult (*primary)(Handle*, int);
    CUresult (*load)(Handle*, const void*);
    CUresult (*function)(Handle*, Handle, const char*);
    CUresult (*get_attribute)(int*, int, Handle);
    CUresult (*set_attribute)(Handle, int, int);
    CUresult (*launch)(const Config*, Handle, void**, void**);
    CUresult (*text)(CUresult, const char**);
    CUresult (*encode)(void*, int, unsigned, void*, const uint64_t*, const uint64_t*, const unsigned*, const unsigned*,
                       int, int, int, int);
    CUresult (*readdress)(void*, void*);  // null in a driver from before CUDA 12
    bool open;

    Driver() : open(false) {
        void* lib = dlopen("libcuda.so.1", RTLD_LAZY);
        if (!lib) return;
        auto find = [&](auto& target, const char* name) {
            target = reinterpret_cast<std::decay_t<decltype(target)>>(dlsym(lib, name));
            return target != nullptr;
        };
        open = find(context, "cuCtxGetCurrent") && find(set_context, "cuCtxSetCurrent") &&
               find(primary, "cuDevicePrimaryCtxRetain") && find(load, "cuModuleLoadData") &&
               find(function, "cuModuleGetFunction") && find(get_attribute, "cuFuncGetAttribute") &&
               find(set_attribute, "cuFuncSetAttribute") && find(launch, "cuLaunchKernelEx") &&
               find(text, "cuGetErrorString") && find(encode, "cuTensorMapEncodeTiled");
        find(readdress, "cuTensorMapReplaceAddress");
    }
};

Driver& driver() {
    static Driver found;
    return found;
}

constexpr int NO_DRIVER = -1;  // beside the driver's own codes, which are positive
constexpr int UNKNOWN = -2;
constexpr int MOST_DEVICES = 64;

// Makes the primary context of a device current; `before` is what to set again afterwards, null where nothing changed.
CUresult enter(int device, Handle* before) {
    static Handle contexts[MOST_DEVICES];
    *before = nullptr;
    if (!driver().open || device < 0 || device >= MOST_DEVICES) return NO_DRIVER;
    if (!contexts[device]) {
        if (CUresult code = driver().primary(&contexts[device], device)) return code;
    }
    Handle current = nullptr;
    if (CUresult code = driver().context(&current)) return code;
    if (current == contexts[device]) return 0;
    *before = current;
    return driver().set_context(contexts[device]);
}

void leave(Handle before) {
    if (before) driver().set_context(before);
}

// ---------------------------------------------------------------- functions and sites

struct Function {
    Handle handle;
    unsigned threads, shared, cluster;
    bool cooperative, serialization;  // serialization: may start while the kernel before it drains
    bool triton;                      // ends with two scratch pointers, and integers are as wide as they need be
};
enum { IS_COOPERATIVE = 1, IS_SERIALIZATION = 2, IS_TRITON = 4 };

std::vector<Function> functions;
std::vector<std::unordered_map<std::string, int>> sites;
std::mutex tables;

constexpr int MOST_ARGUMENTS = 64;

bool is_tensor(const TVMFFIAny& any) {
    return any.type_index == kTVMFFIDLTensorPtr || any.type_index == kTVMFFITensor;
}
DLDeviceType device_of(const TVMFFIAny& any) {
    const void* t = any.type_index == kTVMFFIDLTensorPtr ? any.v_ptr : any.v_obj + 1;  // after the object's header
    return static_cast<const DLTensor*>(t)->device.device_type;
}
bool divisible(int64_t value) { return (value & 15) == 0; }
bool wide(int64_t value) { return value != static_cast<int32_t>(value); }

// One or two characters per argument that say which compiled version it needs.
struct Key {
    char text[2 * MOST_ARGUMENTS + 1];
    int length = 0;

    Key(const kw::Args& args, int first, int device) {
        text[length++] = static_cast<char>(device);
        for (int i = first; i < args.count; ++i) {
            if (is_tensor(args.any[i])) {
                kw::Tensor t = args.tensor(i);
                text[length++] = static_cast<char>(divisible(reinterpret_cast<int64_t>(t.data)) ? 'P' : 'p');
                text[length++] = static_cast<char>(t.dtype.code * 16 + t.dtype.bits / 8);
            } else if (args.none(i)) {
                text[length++] = '0';
            } else if (args.any[i].type_index == kTVMFFIFloat) {
                text[length++] = 'f';
            } else {
                int64_t v = args.integer(i);
                text[length++] = wide(v) ? (divisible(v) ? 'L' : 'l') : (divisible(v) ? 'I' : 'i');
            }
        }
    }
    std::string str() const { return std::string(text, static_cast<size_t>(length)); }
};

// The arguments as the kernel's parameters. A null pointer is passed for None in CUDA C++, where a tensor on the CPU is
// passed by value: its bytes are the parameter. Triton drops the parameter that is None.
struct Parameters {
    uint64_t values[MOST_ARGUMENTS + 2];
    void* pointers[MOST_ARGUMENTS + 2];
    int count = 0;

    void add(uint64_t bits) {
        values[count] = bits;
        pointers[count] = &values[count];
        ++count;
    }
    Parameters() = default;
    Parameters(const kw::Args& args, int first, bool triton, void* scratch) {
        for (int i = first; i < args.count; ++i) {
            if (is_tensor(args.any[i])) {
                add(reinterpret_cast<uint64_t>(args.tensor(i).data));
                if (!triton && device_of(args.any[i]) == kDLCPU) pointers[count - 1] = args.tensor(i).data;
            } else if (args.none(i)) {
                if (!triton) add(0);
            } else if (args.any[i].type_index == kTVMFFIFloat) {
                float value = static_cast<float>(args.real(i));
                uint32_t bits;
                std::memcpy(&bits, &value, 4);
                add(bits);
            } else {
                add(static_cast<uint64_t>(args.integer(i)));  // little endian: the low half is the 32-bit value
            }
        }
        if (triton) {
            add(reinterpret_cast<uint64_t>(scratch));
            add(0);
        }
    }
};

CUresult go(const Function& f, int device, Handle stream, const unsigned grid[3], Parameters& parameters) {
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return 0;
    Handle before;
    if (CUresult code = enter(device, &before)) return code;
    Attribute attributes[4];
    Config config{{grid[0] * (f.triton ? f.cluster : 1), grid[1], grid[2]}, {f.threads, 1, 1}, f.shared, stream,
                  attributes, 0};
    auto attribute = [&](int id) -> Attribute& {
        Attribute& a = attributes[config.count++];
        std::memset(&a, 0, sizeof a);
        a.id = id;
        return a;
    };
    if (f.serialization) attribute(SERIALIZATION).flag = 1;
    if (f.cooperative) attribute(COOPERATIVE).flag = 1;
    if (f.cluster > 1) {
        Attribute& a = attribute(CLUSTER);
        a.cluster[0] = f.cluster;
        a.cluster[1] = a.cluster[2] = 1;
        attribute(SPREAD).flag = 1;
    }
    CUresult code = driver().launch(&config, f.handle, parameters.pointers, nullptr);
    leave(before);
    return code;
}

// A launch with everything fixed but where its tensors lie.
struct Prepared {
    Function function;
    int device;
    unsigned grid[3];
    int count;
    uint64_t values[MOST_ARGUMENTS + 2];
    std::vector<int> tensors;   // their places among the values
    std::vector<char> aligned;  // whether the function counts on 16 bytes there
};
std::deque<Prepared> prepared;  // never moves what it holds

// A tensor map of a [batch, head, row, column] tensor, all but its address: columns, rows, heads, batch, the three
// strides in bytes, rows and columns of a box.
struct Box {
    int element;
    uint64_t shape[4], strides[3];
    unsigned box[4];

    explicit Box(const int64_t* n) : element(static_cast<int>(n[0])) {
        for (int i = 0; i < 4; ++i) shape[i] = static_cast<uint64_t>(n[1 + i]);
        for (int i = 0; i < 3; ++i) strides[i] = static_cast<uint64_t>(n[5 + i]);
        box[0] = static_cast<unsigned>(n[9]), box[1] = static_cast<unsigned>(n[8]), box[2] = box[3] = 1;
    }
    CUresult encode(void* map, void* address) const {  // map: 128 bytes, at an address of whole 64
        enum { SWIZZLE_128 = 3, PROMOTE_256 = 3 };
        constexpr int ELEMENTS[] = {6, 9, 7};  // CU_TENSOR_MAP_DATA_TYPE_FLOAT16, _BFLOAT16, _FLOAT32
        const unsigned steps[4] = {1, 1, 1, 1};
        return driver().encode(map, ELEMENTS[element], 4, address, shape, strides, box, steps, 0, SWIZZLE_128,
                               PROMOTE_256, 0);
    }
};
constexpr int BOX_NUMBERS = 10;

}  // namespace

// A new site's number.
KW_ANSWER(site) {
    std::lock_guard lock(tables);
    sites.emplace_back();
    return static_cast<int64_t>(sites.size()) - 1;
}

// load(result, device, image, name, threads, shared, cluster, flags): result (int64[4] on the CPU) receives the
// function's number, registers, bytes of local memory (spills and stack) and static shared memory. `image` and `name`
// are addresses.
KW_ANSWER(load) {
    auto* result = args.tensor(0).ptr<int64_t>();
    Handle before, module, f;
    if (CUresult code = enter(static_cast<int>(args.integer(1)), &before)) return code;
    CUresult code = driver().load(&module, reinterpret_cast<const void*>(args.integer(2)));
    if (!code) code = driver().function(&f, module, reinterpret_cast<const char*>(args.integer(3)));
    auto shared = static_cast<unsigned>(args.integer(5)), cluster = static_cast<unsigned>(args.integer(6));
    int numbers[3] = {0, 0, 0}, names[3] = {REGISTERS, LOCAL_BYTES, STATIC_SHARED};
    for (int i = 0; i < 3 && !code; ++i) code = driver().get_attribute(&numbers[i], names[i], f);
    if (!code && shared > 48 * 1024) code = driver().set_attribute(f, DYNAMIC_SHARED, static_cast<int>(shared));
    if (!code && cluster > 8) code = driver().set_attribute(f, BIG_CLUSTER, 1);
    leave(before);
    if (code) return code;
    int64_t flags = args.integer(7);
    std::lock_guard lock(tables);
    functions.push_back(Function{f, static_cast<unsigned>(args.integer(4)), shared, cluster,
                                 (flags & IS_COOPERATIVE) != 0, (flags & IS_SERIALIZATION) != 0,
                                 (flags & IS_TRITON) != 0});
    result[0] = static_cast<int64_t>(functions.size()) - 1;
    for (int i = 0; i < 3; ++i) result[1 + i] = numbers[i];
    return 0;
}

// bind(site, function, device, *arguments): arguments like these are served by this function.
KW_ANSWER(bind) {
    std::lock_guard lock(tables);
    Key key(args, 3, static_cast<int>(args.integer(2)));
    sites[static_cast<size_t>(args.integer(0))][key.str()] = static_cast<int>(args.integer(1));
    return 0;
}

// launch(site, device, stream, grid x, y, z, scratch or None, *arguments)
KW_ANSWER(launch) {
    if (args.count - 7 > MOST_ARGUMENTS) return UNKNOWN;
    int device = static_cast<int>(args.integer(1));
    Key key(args, 7, device);
    Function f;
    {
        std::lock_guard lock(tables);
        auto& table = sites[static_cast<size_t>(args.integer(0))];
        auto found = table.find(key.str());
        if (found == table.end()) return UNKNOWN;
        f = functions[static_cast<size_t>(found->second)];
    }
    unsigned grid[3];
    for (int i = 0; i < 3; ++i) grid[i] = static_cast<unsigned>(args.integer(3 + i));
    Parameters parameters(args, 7, f.triton, args.none(6) ? nullptr : args.tensor(6).data);
    return go(f, device, reinterpret_cast<Handle>(args.integer(2)), grid, parameters);
}

// prepare(site, device, grid x, y, z, *arguments): the number under which `relaunch` does this launch again, or UNKNOWN.
KW_ANSWER(prepare) {
    if (args.count - 5 > MOST_ARGUMENTS) return UNKNOWN;
    int device = static_cast<int>(args.integer(1));
    Key key(args, 5, device);
    std::lock_guard lock(tables);
    auto& table = sites[static_cast<size_t>(args.integer(0))];
    auto found = table.find(key.str());
    if (found == table.end()) return UNKNOWN;
    Function f = functions[static_cast<size_t>(found->second)];
    Parameters parameters(args, 5, f.triton, nullptr);
    Prepared& p = prepared.emplace_back();
    p.function = f;
    p.device = device;
    for (int i = 0; i < 3; ++i) p.grid[i] = static_cast<unsigned>(args.integer(2 + i));
    p.count = parameters.count;
    std::memcpy(p.values, parameters.values, sizeof p.values);
    for (int i = 5, at = 0; i < args.count; ++i) {
        if (args.none(i) && f.triton) continue;
        if (is_tensor(args.any[i])) {
            p.tensors.push_back(at);
            p.aligned.push_back(divisible(reinterpret_cast<int64_t>(args.tensor(i).data)));
        }
        ++at;
    }
    return static_cast<int64_t>(prepared.size()) - 1;
}

// relaunch(prepared, stream, *tensors): UNKNOWN where one is not aligned as the prepared one was.
KW_ANSWER(relaunch) {
    const Prepared* p;
    {
        std::lock_guard lock(tables);
        p = &prepared[static_cast<size_t>(args.integer(0))];
    }
    Parameters parameters;
    std::memcpy(parameters.values, p->values, sizeof(uint64_t) * static_cast<size_t>(p->count));
    for (int i = 0; i < p->count; ++i) parameters.pointers[i] = &parameters.values[i];
    for (size_t i = 0; i < p->tensors.size(); ++i) {
        auto address = reinterpret_cast<int64_t>(args.tensor(static_cast<int>(2 + i)).data);
        if (p->aligned[i] && !divisible(address)) return UNKNOWN;
        parameters.values[p->tensors[i]] = static_cast<uint64_t>(address);
    }
    return go(p->function, p->device, reinterpret_cast<Handle>(args.integer(1)), p->grid, parameters);
}

// launch_function(function, device, stream, grid x, y, z, *arguments): one function for all arguments, as CUDA C++ has
// it. Integers are passed as int64_t, numbers with a point as float, None as a null pointer.
KW_ANSWER(launch_function) {
    if (args.count - 6 > MOST_ARGUMENTS) return UNKNOWN;
    Function f;
    {
        std::lock_guard lock(tables);
        f = functions[static_cast<size_t>(args.integer(0))];
    }
    unsigned grid[3];
    for (int i = 0; i < 3; ++i) grid[i] = static_cast<unsigned>(args.integer(3 + i));
    Parameters parameters(args, 6, f.triton, nullptr);
    return go(f, static_cast<int>(args.integer(1)), reinterpret_cast<Handle>(args.integer(2)), grid, parameters);
}

// tensor_map(result, address, element, rows, columns, row stride in bytes, box rows, box columns, bytes that L2 fetches
// at a time: 128 or 256, device): result (128 bytes on the CPU) receives the CUtensorMap of a row-major matrix with the
// 128-byte swizzle. element: 0 float16, 1 bfloat16, 2 float32.
KW_ANSWER(tensor_map) {
    Handle before;  // a thread of autograd's may have no context yet
    if (CUresult code = enter(static_cast<int>(args.integer(9)), &before)) return code;
    enum { SWIZZLE_128 = 3, PROMOTE_128 = 2, PROMOTE_256 = 3 };
    constexpr int ELEMENTS[] = {6, 9, 7};  // CU_TENSOR_MAP_DATA_TYPE_FLOAT16, _BFLOAT16, _FLOAT32
    alignas(64) char map[128];
    const uint64_t shape[2] = {static_cast<uint64_t>(args.integer(4)), static_cast<uint64_t>(args.integer(3))};
    const uint64_t stride = static_cast<uint64_t>(args.integer(5));
    const unsigned box[2] = {static_cast<unsigned>(args.integer(7)), static_cast<unsigned>(args.integer(6))};
    const unsigned steps[2] = {1, 1};
    auto address = reinterpret_cast<void*>(args.integer(1));
    CUresult code = driver().encode(map, ELEMENTS[args.integer(2)], 2, address, shape, &stride, box, steps, 0,
                                    SWIZZLE_128, args.integer(8) == 128 ? PROMOTE_128 : PROMOTE_256, 0);
    leave(before);
    std::memcpy(args.tensor(0).data, map, sizeof map);
    return code;
}

// box_map(result, address, element, columns, rows, heads, batch, row, head and batch strides in bytes, box rows, box
// columns, device): the same of a [batch, head, row, column] tensor, for boxes that lie in one head.
KW_ANSWER(box_map) {
    Handle before;
    if (CUresult code = enter(static_cast<int>(args.integer(12)), &before)) return code;
    alignas(64) char map[128];
    int64_t numbers[BOX_NUMBERS];
    for (int i = 0; i < BOX_NUMBERS; ++i) numbers[i] = args.integer(2 + i);
    CUresult code = Box(numbers).encode(map, reinterpret_cast<void*>(args.integer(1)));
    leave(before);
    std::memcpy(args.tensor(0).data, map, sizeof map);
    return code;
}

// error(text, code): the driver's words for a code, into `text` (uint8 on the CPU), zero-terminated.
KW_ANSWER(error) {
    kw::Tensor text = args.tensor(0);
    const char* words = nullptr;
    auto code = static_cast<CUresult>(args.integer(1));
    if (code == NO_DRIVER) words = "no CUDA driver (libcuda.so.1) or no such device";
    if (code > 0 && driver().open) driver().text(code, &words);
    std::strncpy(text.data, words ? words : "unknown error", static_cast<size_t>(text.numel() - 1));
    return 0;
}

#include "series.hpp"
