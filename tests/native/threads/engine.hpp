#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <random>
#include <vector>

#include "disk/disk_reader.hpp"
#include "offload/row_service.hpp"

namespace gramary::threads {

// The memory that an engine shares with a row service, and the engine's part of both lanes, as
// csrc/offload/ring.hpp tells it. One thread uses each lane; a watchdog may be a third.
class Engine {
 public:
    static constexpr int kNumTables = 2;
    static constexpr std::int64_t kMaxTokens = 600;

    Engine();

    // Adds what a service takes: its view of the memory, and the tables' rows. The engine outlives
    // the service.
    void join(std::list<offload::Tenant>& tenants, const std::vector<std::uint8_t>& host_rows,
              DiskReader& disk);

    // One request each: asks, waits and checks the rows. False where the service left unanswered
    // what it was asked, because it stops.
    bool use_stream_lane(std::mt19937_64& random);
    bool use_host_lane(std::mt19937_64& random);
    // Gives up what the stream lane waits for, like a watchdog.
    void give_up_stream_request();
    // Asks in the host lane and lets the request be.
    void ask_and_forget(std::mt19937_64& random) { ask_host_lane(random); }

    std::uint64_t num_answered() const noexcept { return num_answered_; }

 private:
    std::uint64_t ask_host_lane(std::mt19937_64& random);
    bool await(const offload::Slot& slot, int table_index) const;
    void check_rows(const offload::Slot& slot, int table_index, std::int64_t num_tokens);
    bool is_stopped() const;
    // Waits until the service is through with a request; false where it stops first.
    bool await_done(const offload::Slot& slot, std::uint64_t number) const;

    std::vector<std::uint64_t> memory_;
    offload::Region region_;
    std::atomic<std::uint64_t> stream_number_{0};
    std::uint64_t host_number_ = 0;
    std::uint64_t num_answered_ = 0;  // of the stream lane
};

// Rows of each table; those of the second one from kFirstDiskRow on lie on disk.
std::int64_t num_table_rows();
constexpr std::int64_t kFirstDiskRow = 2000;

}  // namespace gramary::threads
