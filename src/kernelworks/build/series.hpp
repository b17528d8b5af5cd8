// Several launches of one call, told once and made in one go: part of launch.cpp, whose driver, functions and boxes these
// are. What a series is made of, series.py says.
#pragma once

namespace {

// Launches one behind the other with everything fixed but the addresses of some places.
struct Series {
    static constexpr size_t MOST_MAPS = 16;
    struct Map {
        alignas(64) char encoded[128];  // at some address that will not do
        Box box;
        int place;
        int64_t offset;
    };
    struct Argument {
        enum Kind : int64_t { VALUE = 0, PLACE = 1, MAP = 2 } kind;
        int64_t index, bits;  // of a place or a map; the value, or the bytes behind the place
    };
    struct Step {
        Function function;
        unsigned grid[3];
        std::vector<Argument> arguments;
    };
    int device;
    std::vector<int64_t> low;  // the last four bits of each place's address
    std::vector<Map> maps;
    std::vector<Step> steps;
};
std::deque<Series> every_series;    // never moves what it holds
std::vector<size_t> unused_series;  // places in it

}  // namespace

// series(device, numbers): the number under which `run` makes these launches. `numbers` (int64 on the CPU): how many
// places, and an address like each; how many maps, and of each its place, the bytes behind it and a Box's numbers; how
// many launches, and of each its function, grid x, y, z, how many arguments, and of each kind, index and bits.
KW_ANSWER(series) {
    Handle before;
    if (enter(static_cast<int>(args.integer(0)), &before)) return NO_DRIVER;
    auto* n = args.tensor(1).ptr<int64_t>();
    Series made{static_cast<int>(args.integer(0)), {}, {}, {}};
    const int64_t* places = n + 1;
    bool failed = false;
    for (int64_t i = *n++; i > 0; --i) made.low.push_back(*n++ & 15);
    for (int64_t i = *n++; i > 0; --i, n += 2 + BOX_NUMBERS) {
        Series::Map& map = made.maps.emplace_back(Series::Map{{}, Box(n + 2), static_cast<int>(n[0]), n[1]});
        failed = map.box.encode(map.encoded, reinterpret_cast<void*>(places[n[0]] + n[1])) || failed;
    }
    leave(before);
    if (failed || made.maps.size() > Series::MOST_MAPS) return UNKNOWN;
    std::lock_guard lock(tables);
    for (int64_t i = *n++; i > 0; --i) {
        Series::Step& step = made.steps.emplace_back();
        step.function = functions[static_cast<size_t>(*n++)];
        for (unsigned& extent : step.grid) extent = static_cast<unsigned>(*n++);
        int64_t count = *n++;
        if (count > MOST_ARGUMENTS) return UNKNOWN;
        for (; count > 0; --count, n += 3)
            step.arguments.push_back({static_cast<Series::Argument::Kind>(n[0]), n[1], n[2]});
    }
    if (unused_series.empty()) {
        every_series.push_back(std::move(made));
        return static_cast<int64_t>(every_series.size()) - 1;
    }
    size_t number = unused_series.back();
    unused_series.pop_back();
    every_series[number] = std::move(made);
    return static_cast<int64_t>(number);
}

// forget_series(series): nobody runs it any more.
KW_ANSWER(forget_series) {
    std::lock_guard lock(tables);
    unused_series.push_back(static_cast<size_t>(args.integer(0)));
    every_series[unused_series.back()] = Series{};
    return 0;
}

// run(series, stream, *addresses of its places): UNKNOWN, and nothing is launched, where one is not aligned as before.
KW_ANSWER(run) {
    const Series* s;
    {
        std::lock_guard lock(tables);
        s = &every_series[static_cast<size_t>(args.integer(0))];
    }
    auto address = [&](int64_t place) { return args.integer(2 + static_cast<int>(place)); };
    for (size_t i = 0; i < s->low.size(); ++i)
        if ((address(static_cast<int64_t>(i)) & 15) != s->low[i]) return UNKNOWN;
    Handle before;
    if (CUresult code = enter(s->device, &before)) return code;
    alignas(64) char maps[Series::MOST_MAPS][128];
    CUresult code = 0;
    for (size_t i = 0; i < s->maps.size() && !code; ++i) {
        const Series::Map& map = s->maps[i];
        auto at = reinterpret_cast<void*>(address(map.place) + map.offset);
        std::memcpy(maps[i], map.encoded, sizeof map.encoded);
        code = driver().readdress ? driver().readdress(maps[i], at) : map.box.encode(maps[i], at);
    }
    for (size_t at = 0; at < s->steps.size() && !code; ++at) {
        const Series::Step& step = s->steps[at];
        Parameters parameters;
        for (const auto& [kind, index, bits] : step.arguments) {
            parameters.add(static_cast<uint64_t>(kind == Series::Argument::PLACE ? address(index) + bits : bits));
            if (kind == Series::Argument::MAP) parameters.pointers[parameters.count - 1] = maps[index];
        }
        code = go(step.function, s->device, reinterpret_cast<Handle>(args.integer(1)), step.grid, parameters);
    }
    leave(before);
    return code;
}
