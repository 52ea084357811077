#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/gate.hpp"
#include "base/thread_pool.hpp"
#include "expect.hpp"
#include "offload/hot_pool.hpp"
#include "scenarios.hpp"

namespace gramary::threads {
namespace {

constexpr int kRanges = 300;

// Counts in plain integers: every index comes once, and the caller sees what workers wrote.
void give_ranges(Pool& pool) {
    for (int range = 0; range < kRanges; ++range) {
        const std::int64_t count = 1 + range * 37 % 5000;
        std::vector<int> seen(static_cast<std::size_t>(count), 0);
        pool.parallel_for(count, 64, [&seen](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
        });
        for (const int times : seen) EXPECT(times == 1);
        // Now and then long enough for workers to fall asleep.
        if (range % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
}

void give_failing_ranges(Pool& pool) {
    for (int range = 0; range < kRanges; ++range) {
        bool failed = false;
        try {
            pool.parallel_for(1000, 10, [](std::int64_t begin, std::int64_t) {
                if (begin == 500) throw std::runtime_error("on purpose");
            });
        } catch (const std::runtime_error&) {
            failed = true;
        }
        EXPECT(failed);
    }
}

void try_hot_pool(std::chrono::microseconds spin) {
    offload::HotPool pool(3, spin);
    std::thread express([&] { give_ranges(pool.express()); });
    give_ranges(pool.regular());
    express.join();
    pool.stop();
    give_ranges(pool.regular());
}

}  // namespace

void try_pools() {
    {
        ThreadPool pool(3);
        std::thread failing([&] { give_failing_ranges(pool); });
        std::thread other([&] { give_ranges(pool); });
        give_ranges(pool);
        for (int i = 0; i < kRanges; ++i) pool.try_parallel_for(1000, 10, [](auto, auto) {});
        other.join();
        failing.join();
    }
    try_hot_pool(std::chrono::microseconds(2000));
    try_hot_pool(std::chrono::microseconds(0));
}

void try_gate() {
    for (int round = 0; round < 50; ++round) {
        Gate gate;
        bool is_there = true;  // what the gate keeps
        std::vector<std::thread> users;
        for (int i = 0; i < 3; ++i) {
            users.emplace_back([&] {
                while (gate.enter()) {
                    EXPECT(is_there);
                    gate.leave();
                }
            });
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        gate.shut();
        while (!gate.empty(std::chrono::milliseconds(1))) {
        }
        is_there = false;
        for (std::thread& user : users) user.join();
    }
}

}  // namespace gramary::threads
