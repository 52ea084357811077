#include "offload/lane_work.hpp"

#include <algorithm>
#include <span>

namespace gramary::offload {
namespace {

// Rows between two looks whether they are wanted: about a millisecond of copying.
constexpr std::int64_t kRowsALook = std::int64_t{1} << 16;
// Of rows on disk, as many as the reader itself reads together.
constexpr std::int64_t kDiskRowsALook = std::int64_t{1} << 18;

}  // namespace

void LaneWork::gather_and_answer(const Task& task, std::int64_t count, bool tells_parts,
                                 std::int64_t begin_ns) {
    const LayerStore& store = tenant_.stores[task.table_index];
    bool is_whole = true;
    const auto failure = guarded(
        [&] { return gather_parts(task, count, tells_parts && !store.has_disk_rows(), is_whole); });
    scribe_.gathered(store, task.number, begin_ns);
    if (is_whole) publish(task, failure);
}

std::optional<StoreFailure> LaneWork::gather_parts(const Task& task, std::int64_t count,
                                                   bool tells_parts, bool& is_whole) {
    if (!tells_parts) return gather(task, 0, count, is_whole);
    const auto parts = static_cast<std::int64_t>(kParts);
    for (std::int64_t part = 0; part < parts; ++part) {
        const auto failure =
            gather(task, count * part / parts, count * (part + 1) / parts, is_whole);
        if (failure || !is_whole) return failure;
        scribe_.progressed(task.slot, task.table_index, task.number,
                           static_cast<std::uint64_t>(part + 1));
    }
    return std::nullopt;
}

std::optional<StoreFailure> LaneWork::gather(const Task& task, std::int64_t begin, std::int64_t end,
                                             bool& is_whole) {
    const LayerStore& store = tenant_.stores[task.table_index];
    const Slot::Table& parts = task.slot.tables[task.table_index];
    const std::int64_t step = store.has_disk_rows() ? kDiskRowsALook : kRowsALook;
    for (std::int64_t first = begin; first < end; first += step) {
        is_whole = is_wanted(task);
        if (!is_whole) return std::nullopt;
        const std::int64_t count = std::min(step, end - first);
        const std::span<const std::int64_t> ids(parts.ids + first, static_cast<std::size_t>(count));
        GatheredRows gathered;
        auto failure =
            store.gather(ids, parts.rows + first * store.row_bytes(), pool_, scratch_, gathered);
        scribe_.count_rows(store, count, gathered);
        // A wrong id is named by its place in the batch.
        if (failure && failure->what == Failure::row_id) failure->offset += first;
        if (failure) return failure;
    }
    return std::nullopt;
}

}  // namespace gramary::offload
