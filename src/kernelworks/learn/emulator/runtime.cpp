// The emulator's program: reads cases from one file, runs the learner's launch under each order of threads, and writes
// to a second file what was found and to a third the outputs, each different one once.
//
// Usage: PROGRAM LIBRARY ATTEMPT REQUEST FAULTS OUTPUTS. `request.py` writes and reads the files.

#include <csignal>
#include <dlfcn.h>
#include <link.h>
#include <sys/time.h>
#include <unistd.h>

#include "atomics.hpp"

namespace emulator {

inline u64 case_number = 0;
constexpr const char* ALLOCATED = "cudaMalloc";

// The first array of each case, so that its address stays: a pointer to it at file scope is set once.
inline void add_dynamic_array() {
    gpu.dynamic = memory.add("shared memory", 227 * 1024, 4, SHARED);
    std::vector<Cell>().swap(gpu.dynamic->cells);
}

inline void release(Array& a) {
    a.freed = true;
    std::vector<Cell>().swap(a.cells);
}

inline void mark_written(u64 address, u64 bytes) {
    Array* a = memory.beside(address);
    if (!a || address < a->base) return;
    for (u64 o = address - a->base; o < std::min(address - a->base + bytes, a->bytes); o++) a->cells[o / a->granule].written = 1;
}

}  // namespace emulator

#include "hooks.hpp"
#include "printing.hpp"

namespace emulator {

enum Role : u32 { INPUT, OUTPUT, IN_OUT, SCALAR };

struct Argument {
    std::string name;
    u32 role = INPUT, element = 4;
    std::vector<u8> data;
    Array* array = nullptr;
    void* pointer = nullptr;
};

static FILE* answer;
static FILE* outputs;
static void (*entry)(void**);
static u32 parameters;
static u32 seconds_of_an_order;
static bool stops;  // at the first order with a fault: the others have it too

static void read_exactly(FILE* file, void* to, size_t bytes) {
    if (bytes && std::fread(to, 1, bytes, file) != bytes) {
        std::fprintf(stderr, "the request ends too early\n");
        std::exit(3);
    }
}

static u64 read_number(FILE* file) {
    u64 n;
    read_exactly(file, &n, 8);
    return n;
}

static void write_place(const char* name, const Place& p, const Fault& f) {
    u32 tx = f.block[0] ? f.block[0] : 1, ty = f.block[1] ? f.block[1] : 1, gx = f.grid[0] ? f.grid[0] : 1,
        gy = f.grid[1] ? f.grid[1] : 1;
    std::fprintf(answer, ", \"%s\": {\"block\": [%u, %u, %u], \"thread\": [%u, %u, %u], \"pc\": %llu, \"line\": %d, \"access\": %d}",
                 name, p.block % gx, p.block / gx % gy, p.block / gx / gy, p.thread % tx, p.thread / tx % ty,
                 p.thread / tx / ty, (unsigned long long)(p.site ? sites[p.site] - image_begin : 0), p.line, p.kind);
}

static void write_faults() {
    for (const Fault& f : faults) {
        std::fprintf(answer, "{\"what\": \"fault\", \"kind\": \"%s\", \"array\": \"%s\", \"index\": %lld, \"bytes\": %llu, ",
                     f.kind.c_str(), f.array.c_str(), f.index, (unsigned long long)f.bytes);
        std::fprintf(answer, "\"count\": %llu, \"threads\": %llu, \"length\": %llu, \"element\": %u, \"shared\": %s, ",
                     (unsigned long long)f.count, (unsigned long long)f.threads, (unsigned long long)f.length, f.element,
                     f.shared ? "true" : "false");
        std::fprintf(answer, "\"inner\": %llu, \"innermost\": %llu, ", (unsigned long long)f.inner, (unsigned long long)f.innermost);
        std::fprintf(answer, "\"order\": %u, \"case\": %llu, \"value\": %lld, ", f.order, (unsigned long long)case_number, f.value);
        std::fprintf(answer, "\"grid\": [%u, %u, %u], \"block\": [%u, %u, %u]", f.grid[0], f.grid[1], f.grid[2], f.block[0],
                     f.block[1], f.block[2]);
        write_place("first", f.first, f);
        write_place("second", f.second, f);
        std::fprintf(answer, "}\n");
    }
    faults.clear();
}

// The launches of the case's first order, those of one line and configuration as one.
static void write_launches() {
    for (const Launch& l : launches)
        std::fprintf(answer,
                     "{\"what\": \"launch\", \"case\": %llu, \"line\": %d, \"count\": %llu, \"grid\": [%u, %u, %u], "
                     "\"block\": [%u, %u, %u]}\n",
                     (unsigned long long)case_number, l.line, (unsigned long long)l.count, l.grid.x, l.grid.y, l.grid.z,
                     l.block.x, l.block.y, l.block.z);
    launches.clear();
}

static void write_traffic() {
    for (size_t at = 0; at < traffic.size(); at++) {
        const Traffic& t = traffic[at];
        if (!t.requests) continue;
        std::fprintf(answer,
                     "{\"what\": \"traffic\", \"array\": \"%s\", \"shared\": %s, \"access\": %d, \"pc\": %llu, \"requests\": %llu, "
                     "\"accesses\": %llu, \"cost\": %llu, \"least\": %llu, \"worst\": %llu, \"bytes\": %llu, \"case\": %llu}\n",
                     t.several ? "" : t.array.c_str(), t.shared ? "true" : "false", t.kind, (unsigned long long)(sites[at] - image_begin),
                     (unsigned long long)t.requests, (unsigned long long)t.accesses, (unsigned long long)t.cost,
                     (unsigned long long)t.least, (unsigned long long)t.worst, (unsigned long long)t.bytes,
                     (unsigned long long)case_number);
    }
    traffic.clear();
}

// Where the processor was; 0 if it is not known.
static u64 interrupted_at(void* context) {
#if defined(__x86_64__)
    return u64(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#else
    (void)context;
    return 0;
#endif
}

// A run that does not end, or that the processor stops: what is known goes out, and the program ends.
static void on_signal(int number, siginfo_t* info, void* context) {
    Fault f;
    f.kind = number == SIGPROF ? "endless" : "crash";
    u64 address = number == SIGPROF ? 0 : u64(info->si_addr);
    if (number != SIGPROF && on_a_stack(address)) f.kind = "stack_overflow";
    // Between two threads the first one stands for all: each has come to a barrier.
    const Fibre* who = gpu.self ? gpu.self : gpu.fibres[0].state != FINISHED ? &gpu.fibres[0] : nullptr;
    if (who) f.second = place_of(*who, who->last_site, NONE);
    f.value = who ? 1 : 0;
    u64 at = interrupted_at(context);
    if (gpu.self && f.second.site) f.second.line = 0;  // it has gone on from its last barrier
    if (gpu.self && at >= image_begin && at < image_end) {
        f.second.site = site(reinterpret_cast<void*>(at + 1));  // as behind a call, which is what a site is
        f.second.line = 0;
    }
    report(f);
    write_faults();
    std::fclose(answer);
    std::fclose(outputs);
    _exit(4);
}

static void open_library(const char* path, const char* attempt) {
    add_dynamic_array();  // initialisers of the library may ask for it
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::exit(3);
    }
    entry = reinterpret_cast<void (*)(void**)>(dlsym(library, (std::string("kw_entry_") + attempt).c_str()));
    parameters = *static_cast<const u32*>(dlsym(library, "kw_arguments"));
    struct link_map* map;
    dlinfo(library, RTLD_DI_LINKMAP, &map);
    image_begin = map->l_addr;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void*) {
            if (info->dlpi_addr == image_begin)
                for (int i = 0; i < info->dlpi_phnum; i++)
                    if (info->dlpi_phdr[i].p_type == PT_LOAD)
                        image_end = std::max(image_end, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz);
            return 0;
        },
        nullptr);
}

static void watch() {
    static u8 stack[64 * 1024];
    stack_t other{};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, nullptr);
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF}) sigaction(number, &action, nullptr);
}

// An order may take so many seconds of this process's own CPU time: a loaded machine changes nothing.
static void start_clock() {
    struct itimerval timer {};
    timer.it_value.tv_sec = seconds_of_an_order;
    setitimer(ITIMER_PROF, &timer, nullptr);
}

static std::vector<Argument> read_arguments(FILE* file) {
    std::vector<Argument> arguments(read_number(file));
    for (Argument& a : arguments) {
        a.name.resize(read_number(file));
        read_exactly(file, a.name.data(), a.name.size());
        a.role = u32(read_number(file));
        a.element = u32(read_number(file));
        a.data.resize(read_number(file));
        read_exactly(file, a.data.data(), a.data.size());
    }
    return arguments;
}

static void fresh_arguments(std::vector<Argument>& arguments) {
    for (Argument& a : arguments) {
        if (a.role == SCALAR) continue;
        std::memset(memory.base + (a.array->base - u64(memory.base)) - PAGE, 0xff, a.array->bytes + 2 * PAGE);
        if (a.role != OUTPUT) std::memcpy(reinterpret_cast<void*>(a.array->base), a.data.data(), a.data.size());
        else
            for (Cell& c : a.array->cells) c.written = NOT_WRITTEN;
    }
}

static u64 digest(const u8* data, u64 bytes, u64 h) {
    for (u64 i = 0; i < bytes; i++) h = (h ^ data[i]) * 0x100000001b3ull;
    return h;
}

// The outputs of one order go out unless an earlier order of the case had the same.
static void write_outputs(std::vector<Argument>& arguments, u32 order, std::vector<u64>& known) {
    u64 h = 0xcbf29ce484222325ull;
    for (Argument& a : arguments)
        if (a.role == OUTPUT || a.role == IN_OUT) h = digest(reinterpret_cast<u8*>(a.array->base), a.array->bytes, h);
    if (std::find(known.begin(), known.end(), h) != known.end()) return;
    known.push_back(h);
    for (Argument& a : arguments) {
        if (a.role != OUTPUT && a.role != IN_OUT) continue;
        long long first = -1, last = -1;
        u64 missing = 0;
        if (a.role == OUTPUT) {
            for (u64 i = 0; i < a.array->bytes / a.element; i++) {
                if (a.array->cells[i * a.element / a.array->granule].written == 1) continue;
                if (first < 0) first = (long long)i;
                last = (long long)i;
                missing++;
            }
        }
        std::fprintf(answer,
                     "{\"what\": \"output\", \"array\": \"%s\", \"case\": %llu, \"order\": %u, \"offset\": %ld, \"bytes\": %llu, "
                     "\"missing\": %llu, \"first\": %lld, \"last\": %lld}\n",
                     a.name.c_str(), (unsigned long long)case_number, order, std::ftell(outputs),
                     (unsigned long long)a.array->bytes, (unsigned long long)missing, first, last);
        std::fwrite(reinterpret_cast<void*>(a.array->base), 1, a.array->bytes, outputs);
    }
}

// One call of the learner's host function. False if a fault ended it.
static bool run_order(void** arguments) {
    if (setjmp(gpu.give_up)) {
        gpu.self = nullptr;
        gpu.closure_bytes = 0;
        pending.clear();
        return false;
    }
    entry(arguments);
    return true;
}

// False if the cases after this one are not wanted any more.
static bool run_case(std::vector<Argument>& arguments, const std::vector<Order>& orders) {
    memory.clear();
    add_dynamic_array();
    for (Argument& a : arguments) {
        a.pointer = a.data.data();
        if (a.role == SCALAR) continue;
        a.array = memory.add(a.name, a.data.size(), a.element, GLOBAL);
        a.array->initialised = a.role != OUTPUT;
        a.array->constant = a.role == INPUT;
        a.pointer = &a.array->base;
    }
    std::vector<void*> pointers;
    for (Argument& a : arguments) pointers.push_back(a.pointer);
    std::vector<u64> known;
    for (u32 number = 0; number < orders.size(); number++) {
        gpu.order_number = number;
        if (number < 2) open_stdout(number == 0);
        gpu.reports = 0;
        gpu.order = orders[number];
        gpu.random = orders[number].seed * 0x9e3779b97f4a7c15ull | 1;
        logs_requests = number == 0;
        logged = 0;
        pending.clear();
        fresh_arguments(arguments);
        start_clock();
        bool ended = run_order(pointers.data());
        forgive_reads_beside_atomics();
        if (!ended) break;  // the other orders of a case that cannot end say nothing new
        write_outputs(arguments, number, known);
        for (Array* a : memory.arrays)
            if (a->name == ALLOCATED && !a->freed) release(*a);
        if (stops && !faults.empty()) break;
    }
    bool goes_on = !stops || faults.empty();
    write_faults();
    write_launches();
    write_traffic();
    return goes_on;
}

}  // namespace emulator

int main(int count, char** words) {
    using namespace emulator;
    FILE* request = count == 6 ? std::fopen(words[3], "rb") : nullptr;
    answer = request ? std::fopen(words[4], "w") : nullptr;
    outputs = answer ? std::fopen(words[5], "wb") : nullptr;
    if (!outputs) return 2;
    memory.reserve();
    reserve_stacks();
    open_library(words[1], words[2]);
    watch();
    seconds_of_an_order = u32(read_number(request));
    stops = read_number(request) != 0;
    u64 cases = read_number(request);
    for (u64 c = 0; c < cases; c++) {
        case_number = c;
        std::vector<Argument> arguments = read_arguments(request);
        if (arguments.size() != parameters) return 2;
        std::vector<Order> orders(read_number(request));
        for (Order& o : orders) {
            o.kind = u32(read_number(request));
            o.which = u32(read_number(request));
            o.seed = read_number(request);
        }
        bool goes_on = run_case(arguments, orders);
        std::fflush(answer);
        if (!goes_on) break;
    }
    std::fclose(answer);
    std::fclose(outputs);
    return 0;
}
