// What a learner's function does to its process, written to a pipe before the process ends: which address was touched,
// by which instruction of which library, and whether it was written. Loaded into the worker; see worker.py.
#include <dlfcn.h>
#include <execinfo.h>
#include <stdint.h>
#include <stdio.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include <initializer_list>

namespace {

int report = 2;
char stack[1 << 16];

struct Line {
    char text[256];
    int length = 0;
    void words(const char* said) {
        while (*said && length < 255) text[length++] = *said++;
    }
    void number(unsigned long long value) {
        char digits[24];
        int count = 0;
        do digits[count++] = static_cast<char>('0' + value % 10);
        while (value /= 10);
        while (count && length < 255) text[length++] = digits[--count];
    }
};

// Whether an address lies in a library that is made of a learner's file: compiling.py names it so.
bool is_learners(void* place, Dl_info* library) {
    if (!dladdr(place, library) || !library->dli_fname) return false;
    return strstr(library->dli_fname, "/learn-") && !strstr(library->dli_fname, "/learn-signals");
}

void end(int signal, siginfo_t* info, void* context) {
    const auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    const auto at = static_cast<unsigned long long>(machine.gregs[REG_RIP]);
    const unsigned long long writes = (machine.gregs[REG_ERR] >> 1) & 1;
    const auto top = static_cast<unsigned long long>(machine.gregs[REG_RSP]);
#elif defined(__aarch64__)
    const auto at = static_cast<unsigned long long>(machine.pc);
    const unsigned long long writes = 2;  // unknown
    const auto top = static_cast<unsigned long long>(machine.sp);
#endif
    Dl_info library{};
    auto place = reinterpret_cast<void*>(at);
    if (!is_learners(place, &library)) {  // in a function of a library: who called it?
        void* frames[64];
        const int count = backtrace(frames, 64);
        for (int index = 0; index < count; ++index) {
            Dl_info caller{};
            if (is_learners(frames[index], &caller)) {
                library = caller;
                place = static_cast<char*>(frames[index]) - 1;
                break;
            }
        }
    }
    const auto base = reinterpret_cast<unsigned long long>(library.dli_fbase);
    Line line;
    line.words("{\"signal\": ");
    line.number(static_cast<unsigned long long>(signal));
    line.words(", \"address\": ");
    line.number(reinterpret_cast<unsigned long long>(info->si_addr));
#if defined(__x86_64__)
    const auto code = reinterpret_cast<const unsigned char*>(at);
    if (signal == SIGILL && !(code[0] == 0x0f && code[1] == 0x0b)) {  // not the trap that compilers put: ud2
        line.words(", \"unknown\": 1");
    }
#endif
    line.words(", \"code\": ");
    line.number(info->si_code > 0 ? static_cast<unsigned long long>(info->si_code) : 0);
    line.words(", \"writes\": ");
    line.number(writes);
    line.words(", \"stack\": ");
    line.number(top);
    line.words(", \"at\": ");
    line.number(reinterpret_cast<unsigned long long>(place) - base);
    line.words(", \"in\": \"");
    line.words(library.dli_fname ? library.dli_fname : "");
    line.words("\"}\n");
    if (write(report, line.text, static_cast<unsigned long>(line.length)) < 0) _exit(98);
    _exit(99);
}

}  // namespace

extern "C" void learn_watch(int descriptor) {
    report = descriptor;
    void* frame[1];
    backtrace(frame, 1);  // loads what it needs, which a signal handler must not
    stack_t own{};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, nullptr);
    struct sigaction action {};
    action.sa_sigaction = end;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGVTALRM}) sigaction(signal, &action, nullptr);
}

// A call that uses more of the processor than this ends the process; 0 takes the limit away.
extern "C" void learn_limit(double seconds) {
    itimerval timer{};
    timer.it_value.tv_sec = static_cast<time_t>(seconds);
    timer.it_value.tv_usec = static_cast<suseconds_t>((seconds - static_cast<double>(timer.it_value.tv_sec)) * 1e6);
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);
}

// What the compiler's checks of undefined behaviour call, in the place of libubsan: the layout of the data is its own.
namespace {

struct Place {
    const char* file;
    uint32_t line, column;
};
struct Type {
    uint16_t kind, info;
    char name[1];  // quoted, and longer than this
};
struct Two {
    Place place;
    const Type *first, *second;
};

// A value that is handed over in a pointer, by the type it has.
long long value_of(const Type* type, uintptr_t held) {
    const int bits = 1 << (type->info >> 1);
    if (!(type->info & 1) || bits >= 64) return static_cast<long long>(held);
    const auto moved = static_cast<unsigned long long>(held) << (64 - bits);
    return static_cast<long long>(moved) >> (64 - bits);
}

// A floating-point number that is handed over as its bits, in digits; nothing if it is wider than a pointer.
void digits_of(const Type* type, uintptr_t held, char (&digits)[32]) {
    digits[0] = 0;
    if (type->kind != 1 || type->info > 64) return;
    double value = 0;
    if (type->info == 32) {
        float narrow;
        memcpy(&narrow, &held, sizeof narrow);
        value = narrow;
    } else {
        memcpy(&value, &held, sizeof value);
    }
    snprintf(digits, sizeof digits, "%.6g", value);
}

[[noreturn]] void undefined(const char* what, const Place& place, const Type* type, long long value,
                            const char* digits = "") {
    Line line;
    line.words("{\"signal\": 4, \"address\": 0, \"writes\": 2, \"at\": 0, \"in\": \"\", \"fault\": \"");
    line.words(what);
    line.words("\", \"line\": ");
    line.number(place.line);
    line.words(", \"column\": ");
    line.number(place.column);
    line.words(value < 0 ? ", \"value\": -" : ", \"value\": ");
    line.number(value < 0 ? 0ULL - static_cast<unsigned long long>(value) : static_cast<unsigned long long>(value));
    line.words(", \"number\": \"");
    line.words(digits);
    line.words("\", \"type\": \"");
    for (const char* at = type ? type->name : ""; *at && line.length < 240; ++at) {
        if (*at != '\'' && *at != '"' && *at != '\\') line.text[line.length++] = *at;
    }
    line.words("\"}\n");
    if (write(report, line.text, static_cast<unsigned long>(line.length)) < 0) _exit(98);
    _exit(99);
}

}  // namespace

extern "C" {
void __ubsan_handle_out_of_bounds_abort(const Two* two, uintptr_t index) {
    undefined("index", two->place, two->first, value_of(two->second, index));
}
void __ubsan_handle_divrem_overflow_abort(const Two* two, uintptr_t, uintptr_t) {
    undefined("division", two->place, two->first, 0);
}
void __ubsan_handle_shift_out_of_bounds_abort(const Two* two, uintptr_t, uintptr_t by) {
    undefined("shift", two->place, two->first, value_of(two->second, by));
}
void __ubsan_handle_float_cast_overflow_abort(const Two* two, uintptr_t held) {
    char digits[32];
    digits_of(two->first, held, digits);
    undefined("conversion", two->place, two->second, 0, digits);
}
void __ubsan_handle_add_overflow_abort(const Two* two, uintptr_t, uintptr_t) {
    undefined("overflow", two->place, two->first, 0);
}
void __ubsan_handle_sub_overflow_abort(const Two* two, uintptr_t, uintptr_t) {
    undefined("overflow", two->place, two->first, 0);
}
void __ubsan_handle_mul_overflow_abort(const Two* two, uintptr_t, uintptr_t) {
    undefined("overflow", two->place, two->first, 0);
}
void __ubsan_handle_negate_overflow_abort(const Two* two, uintptr_t) {
    undefined("overflow", two->place, two->first, 0);
}
}
