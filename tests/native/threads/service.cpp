#include <atomic>
#include <chrono>
#include <list>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "expect.hpp"
#include "offload/row_service.hpp"
#include "rows.hpp"
#include "scenarios.hpp"

namespace gramary::threads {
namespace {

using namespace offload;
using std::chrono::milliseconds;

constexpr int kNumRequests = 150;

// What the owner of a service does while it serves.
void look_on(RowService& service, std::size_t leaving, const std::atomic<bool>& is_over) {
    for (int i = 0; !is_over; ++i) {
        service.trace().enable(i % 3 != 0);
        service.trace().take();
        service.script().set({0, i % 4 == 0 ? 300 : 0, i % 5 == 0 ? 7 : 0, 1});
        if (i == 20) service.ask_to_leave(leaving);
        std::this_thread::sleep_for(milliseconds(2));
    }
    service.script().set({});
}

// Threads of one engine: a lane each, and a watchdog that gives up now and then.
class EngineThreads {
 public:
    EngineThreads(Engine& engine, unsigned seed) {
        threads_.emplace_back([&engine, seed, this] {
            std::mt19937_64 random(seed);
            for (int i = 0; i < kNumRequests && engine.use_stream_lane(random); ++i) {
            }
            is_over_ = true;
        });
        threads_.emplace_back([&engine, seed] {
            std::mt19937_64 random(seed + 1);
            for (int i = 0; i < kNumRequests && engine.use_host_lane(random); ++i) {
            }
        });
        threads_.emplace_back([&engine, this] {
            while (!is_over_) {
                std::this_thread::sleep_for(milliseconds(5));
                engine.give_up_stream_request();
            }
        });
    }
    ~EngineThreads() {
        for (std::thread& thread : threads_) thread.join();
    }

 private:
    std::atomic<bool> is_over_{false};
    std::vector<std::thread> threads_;
};

void try_polling(Waiter::Kind poll) {
    std::vector<std::uint8_t> host_rows(static_cast<std::size_t>(num_table_rows() * kRowBytes));
    for (std::int64_t row = 0; row < num_table_rows(); ++row) {
        fill_row(row, &host_rows[static_cast<std::size_t>(row * kRowBytes)]);
    }
    const RowFile file(num_table_rows());
    DiskReader disk = file.open("auto", true);
    Engine staying, leaving;
    std::list<Tenant> tenants;
    staying.join(tenants, host_rows, disk);
    leaving.join(tenants, host_rows, disk);
    RowService service(std::move(tenants), ServiceOptions{poll, 3});
    service.start();
    std::atomic<bool> is_over{false};
    std::thread owner([&] { look_on(service, 1, is_over); });
    {
        const EngineThreads first(staying, 1), second(leaving, 3);
    }
    EXPECT(staying.num_answered() > 0);
    service.ask_to_leave(1);
    while (!service.has_left(1)) std::this_thread::yield();
    service.forget(1);
    is_over = true;
    owner.join();
    // An end while an answer is held back.
    service.script().hold(true);
    std::mt19937_64 random(9);
    staying.ask_and_forget(random);
    std::thread other([&] { service.stop(); });
    service.stop();
    other.join();
}

}  // namespace

void try_service() {
    for (const auto poll : {Waiter::Kind::adaptive, Waiter::Kind::sleep}) try_polling(poll);
}

}  // namespace gramary::threads
