#pragma once
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "offload/hot_pool.hpp"
#include "offload/layer_store.hpp"
#include "offload/region.hpp"
#include "offload/service_script.hpp"
#include "offload/trace_log.hpp"
#include "offload/waiter.hpp"

namespace gramary::offload {

struct ServiceOptions {
    Waiter::Kind poll = Waiter::Kind::adaptive;
    int num_threads = 1;
};

// Serves the requests of one region.
//
// One dispatcher thread looks for requests: the stream lane first, also between the pieces of a
// host-lane request; it shares the copying of large pieces with its own pool. Nothing on the path
// of a request touches Python or CUDA. Life: construct, then start() and stop(), or run() on a
// thread of one's own; the region, the stores and what they point to outlive it.
class RowService {
 public:
    static constexpr std::int64_t kPieceRows = 4096;

    RowService(Region region, std::vector<LayerStore> stores, const ServiceOptions& options);
    ~RowService();

    void start();
    // Asks the dispatcher to end and waits until it has; requests in flight stay unanswered.
    void stop();
    // The dispatcher's loop, until the region's stop word is set or, with a parent given, this
    // process has another one.
    void run(int parent_pid = 0);

    ServiceScript& script() noexcept { return script_; }
    TraceLog& trace() noexcept { return trace_; }

 private:
    void count(Counter counter, std::int64_t amount) noexcept {
        add(region_.header->counters[static_cast<std::size_t>(counter)], amount);
    }
    bool serve_streams();
    void serve_stream(Slot& slot);
    bool serve_host();
    void answer_host(std::uint64_t number, Slot& slot, const Input& input);
    std::optional<StoreFailure> gather_in_pieces(std::size_t layer, std::uint64_t number,
                                                 std::span<const std::int64_t> ids,
                                                 std::uint8_t* out);
    void publish(Slot& slot, std::size_t layer, std::uint64_t number, std::uint64_t& state,
                 const std::optional<StoreFailure>& failure);

    Region region_;
    std::vector<LayerStore> stores_;
    ServiceOptions options_;
    HotPool pool_;
    ServiceScript script_;
    TraceLog trace_;
    std::uint64_t served_host_ = 0;
    std::chrono::steady_clock::time_point waiting_since_{};
    std::vector<std::int64_t> stream_ids_;
    std::thread dispatcher_;
};

}  // namespace gramary::offload
