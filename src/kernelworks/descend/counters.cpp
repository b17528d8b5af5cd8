// Which instruction each thread of this process runs, a few hundred times a second of its CPU time: SIGPROF comes to a
// thread that runs, and its handler notes the program counter. Between start and stop nothing is allocated.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

struct Sample {
    uint64_t at;  // ns of CLOCK_MONOTONIC
    uint64_t address;
    uint64_t thread;
};

Sample* samples = nullptr;
int64_t capacity = 0;
std::atomic<int64_t> count{0};
struct sigaction handler_before;

uint64_t program_counter(const ucontext_t* context) {
#if defined(__x86_64__)
    return static_cast<uint64_t>(context->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return context->uc_mcontext.pc;
#else
#error "no program counter is known for this kind of CPU"
#endif
}

void note(int, siginfo_t*, void* context) {
    int error = errno;
    int64_t at = count.fetch_add(1, std::memory_order_relaxed);
    if (at < capacity) {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        samples[at] = {static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec),
                       program_counter(static_cast<ucontext_t*>(context)),
                       static_cast<uint64_t>(syscall(SYS_gettid))};
    }
    errno = error;
}

int set_timer(int64_t microseconds) {
    itimerval every;
    every.it_interval = {microseconds / 1000000, microseconds % 1000000};
    every.it_value = every.it_interval;
    return setitimer(ITIMER_PROF, &every, nullptr);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Notes up to `most` samples at `to`, one for so many microseconds of CPU time. 0, or what errno says.
EXPORTED int start_counters(void* to, int64_t most, int64_t microseconds) {
    samples = static_cast<Sample*>(to);
    capacity = most;
    count = 0;
    struct sigaction action = {};
    action.sa_sigaction = note;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    if (sigaction(SIGPROF, &action, &handler_before)) return errno;
    return set_timer(microseconds) ? errno : 0;
}

// Ends it, and tells how many there were: more than there was room for, if they did not fit.
EXPORTED int64_t stop_counters() {
    set_timer(0);
    // A signal on its way finds a handler still; the default action of SIGPROF would end the process.
    if (handler_before.sa_handler != SIG_DFL) sigaction(SIGPROF, &handler_before, nullptr);
    capacity = 0;
    return count;
}
