#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace gramary {

// Counters of a reader since it was opened. Every field only grows, except max_in_flight.
struct DiskStats {
    using Counter = std::atomic<std::int64_t>;
    Counter num_batches{0};
    Counter num_rows{0};
    Counter num_distinct_rows{0};
    Counter num_blocks{0};         // distinct blocks of 4 KiB asked for
    Counter row_bytes{0};          // bytes of rows asked for
    Counter read_bytes{0};         // bytes that reads brought
    Counter num_cached_reads{0};   // answered by the page cache at once
    Counter num_backend_reads{0};  // given to the backend, cached ones of small batches included
    Counter num_direct_reads{0};   // of them with O_DIRECT
    Counter num_retries{0};        // reads done again by pread
    Counter num_failures{0};
    Counter max_in_flight{0};
    Counter planning_ns{0};
    Counter cached_ns{0};      // of large batches: reading what the page cache holds
    Counter reading_ns{0};     // in the backend
    Counter submitting_ns{0};  // of it, handing reads in (io_uring, summed over threads)
    Counter waiting_ns{0};     // of it, for the storage (io_uring, summed over threads)
    Counter scattering_ns{0};  // of it, checking and copying (io_uring, summed over threads)

    static void add(Counter& counter, std::int64_t amount) noexcept {
        counter.fetch_add(amount, std::memory_order_relaxed);
    }
    static void raise(Counter& counter, std::int64_t value) noexcept {
        std::int64_t seen = counter.load(std::memory_order_relaxed);
        while (seen < value && !counter.compare_exchange_weak(seen, value)) {
        }
    }
};

// Adds the time of its life to a counter.
class StopWatch {
 public:
    explicit StopWatch(DiskStats::Counter& counter) noexcept
        : counter_(counter), start_(std::chrono::steady_clock::now()) {}
    ~StopWatch() {
        const auto passed = std::chrono::steady_clock::now() - start_;
        DiskStats::add(counter_,
                       std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
    }
    StopWatch(const StopWatch&) = delete;
    StopWatch& operator=(const StopWatch&) = delete;

 private:
    DiskStats::Counter& counter_;
    std::chrono::steady_clock::time_point start_;
};

}  // namespace gramary
