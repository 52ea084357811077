#pragma once
#include <cerrno>
#include <cstdint>
#include <new>
#include <optional>

#include "base/pool.hpp"
#include "offload/scribe.hpp"
#include "offload/tenant.hpp"

namespace gramary::offload {

// What one lane does for one table of one request; used by one thread.
//
// It looks between pieces whether anybody still waits, so that a request given up costs the others
// who are served a millisecond, and not a prompt.
class LaneWork {
 public:
    LaneWork(Tenant& tenant, Pool& pool, Scribe& scribe)
        : tenant_(tenant), pool_(pool), scribe_(scribe) {}
    LaneWork(const LaneWork&) = delete;
    LaneWork& operator=(const LaneWork&) = delete;

    // A table's request: where its answer goes, and the word that says whether it is wanted.
    struct Task {
        const Slot& slot;
        std::size_t table_index;
        std::uint64_t number;
        std::uint64_t& state;
    };

    bool is_wanted(const Task& task) const noexcept {
        return load_acquire(task.state) == state_of(task.number, Phase::requested) &&
               !tenant_.is_stopping();
    }

    // Writes the rows of the first `count` ids of the slot behind them and answers. Progress is
    // told by part where tells_parts and the rows lie in memory; those on disk are read for the
    // whole batch at once: each block once, the queue full.
    // begin_ns: since when the table is worked on.
    void gather_and_answer(const Task& task, std::int64_t count, bool tells_parts,
                           std::int64_t begin_ns);

    // The same for a request that failed before its ids were known.
    void refuse(const Task& task, const StoreFailure& failure) { publish(task, failure); }

 private:
    // Rows [begin, end) of the slot. is_whole turns false where nobody waits any more.
    std::optional<StoreFailure> gather(const Task& task, std::int64_t begin, std::int64_t end,
                                       bool& is_whole);
    std::optional<StoreFailure> gather_parts(const Task& task, std::int64_t count, bool tells_parts,
                                             bool& is_whole);
    void publish(const Task& task, const std::optional<StoreFailure>& failure) {
        scribe_.publish(task.slot, task.table_index, task.number, task.state, failure);
    }

    Tenant& tenant_;
    Pool& pool_;
    Scribe& scribe_;
    GatherScratch scratch_;
};

// The failure of work that ran out of memory, or of threads: it is this request's alone.
template <class Work>
std::optional<StoreFailure> guarded(const Work& work) noexcept {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        return StoreFailure{Failure::read, ENOMEM};
    } catch (...) {
        return StoreFailure{Failure::read, EIO};
    }
}

}  // namespace gramary::offload
