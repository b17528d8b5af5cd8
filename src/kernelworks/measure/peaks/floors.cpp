// What a parallel region and a fresh page of memory cost.
//
//   fork_join(result, rounds, threads)    empty parallel regions; result float64[2]: seconds of all, rounds
//   page_touch(result, bytes)             first write to every page of a fresh mapping; seconds of all, pages
#include <sys/mman.h>
#include <unistd.h>

#include "clock.hpp"

KW_EXPORT(fork_join) {
    double* result = args.tensor(0).ptr<double>();
    int64_t rounds = args.integer(1), threads = args.integer(2);
    double begin = kw::seconds_now();
    for (int64_t i = 0; i < rounds; ++i)
        kw::parallel(threads, [](int64_t ith, int64_t) { __asm__ volatile("" ::"r"(ith)); });
    result[0] = kw::seconds_now() - begin;
    result[1] = static_cast<double>(rounds);
}

KW_EXPORT(page_touch) {
    double* result = args.tensor(0).ptr<double>();
    int64_t bytes = args.integer(1), page = 4096;
    result[0] = result[1] = 0;
    void* fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return;
    volatile char* p = static_cast<volatile char*>(fresh);
    double begin = kw::seconds_now();
    for (int64_t i = 0; i < bytes; i += page) p[i] = 1;
    result[0] = kw::seconds_now() - begin;
    result[1] = static_cast<double>(bytes / page);
    munmap(fresh, bytes);
}
