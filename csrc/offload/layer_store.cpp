#include "offload/layer_store.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>

namespace gramary::offload {
namespace {

constexpr std::int64_t kGrain = 256;
constexpr std::int64_t kAhead = 16;

void lower(std::atomic<std::int64_t>& least, std::int64_t value) noexcept {
    std::int64_t seen = least.load();
    while (value < seen && !least.compare_exchange_weak(seen, value)) {
    }
}

// One unsigned comparison; -1 lies in no extent.
template <class Extent>
bool is_in(std::int64_t id, const Extent& extent) noexcept {
    return static_cast<std::uint64_t>(id) - static_cast<std::uint64_t>(extent.first_row) <
           static_cast<std::uint64_t>(extent.num_rows);
}

}  // namespace

LayerStore::LayerStore(NgramHasher hasher, std::int64_t num_table_rows, std::int64_t row_bytes,
                       HostExtent host, DiskExtent disk)
    : hasher_(std::move(hasher)),
      num_table_rows_(num_table_rows),
      row_bytes_(row_bytes),
      host_(host),
      disk_(disk) {}

std::optional<StoreFailure> LayerStore::hash(const FlatBatch& batch, std::int64_t* ids,
                                             HotPool& pool) const {
    if (const BatchFault fault = hasher_.check(batch)) {
        return StoreFailure{Failure::token, fault.kind, -1, fault.index};
    }
    constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    std::atomic<std::int64_t> first_wrong{kNone};
    pool.parallel_for(batch.num_tokens, kGrain, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t wrong =
            hasher_.hash_tokens(batch, begin, end, ids + begin * num_heads());
        if (wrong >= 0) lower(first_wrong, wrong);
    });
    if (first_wrong == kNone) return std::nullopt;
    return StoreFailure{Failure::token, BatchFault::token, -1, first_wrong};
}

std::optional<StoreFailure> LayerStore::check(std::span<const std::int64_t> ids) const noexcept {
    const auto wrong = std::find_if(
        ids.begin(), ids.end(), [&](std::int64_t id) { return id < -1 || id >= num_table_rows_; });
    if (wrong == ids.end()) return std::nullopt;
    return StoreFailure{Failure::row_id, 0, -1, wrong - ids.begin()};
}

std::optional<StoreFailure> LayerStore::gather(std::span<const std::int64_t> ids, std::uint8_t* out,
                                               HotPool& pool) const {
    copy_host_rows(ids, out, pool);
    return disk_.num_rows > 0 ? read_disk_rows(ids, out, pool) : std::nullopt;
}

void LayerStore::copy_host_rows(std::span<const std::int64_t> ids, std::uint8_t* out,
                                HotPool& pool) const {
    const auto width = static_cast<std::size_t>(row_bytes_);
    pool.parallel_for(
        static_cast<std::int64_t>(ids.size()), kGrain, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                if (i + kAhead < end && is_in(ids[i + kAhead], host_)) {
                    const std::uint8_t* next =
                        host_.rows + (ids[i + kAhead] - host_.first_row) * row_bytes_;
                    for (std::size_t byte = 0; byte < width; byte += 64) {
                        __builtin_prefetch(next + byte);
                    }
                }
                std::uint8_t* row = out + i * row_bytes_;
                if (is_in(ids[i], host_)) {
                    std::memcpy(row, host_.rows + (ids[i] - host_.first_row) * row_bytes_, width);
                } else if (!is_in(ids[i], disk_)) {
                    std::memset(row, 0, width);
                }
            }
        });
}

std::optional<StoreFailure> LayerStore::read_disk_rows(std::span<const std::int64_t> ids,
                                                       std::uint8_t* out, HotPool& pool) const {
    std::vector<std::int64_t> places;
    std::vector<std::int64_t> disk_ids;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (is_in(ids[i], disk_)) {
            places.push_back(static_cast<std::int64_t>(i));
            disk_ids.push_back(ids[i]);
        }
    }
    if (places.empty()) return std::nullopt;
    // Where every row comes from disk, the reader writes straight into the result.
    const bool direct = places.size() == ids.size();
    std::vector<std::uint8_t> rows(direct ? 0 : disk_ids.size() * row_bytes_);
    if (const auto failure = disk_.reader->read(disk_ids, direct ? out : rows.data())) {
        const bool is_read = failure->kind == ReadFailure::Kind::read;
        return StoreFailure{is_read ? Failure::read : Failure::checksum, failure->error,
                            static_cast<std::int32_t>(file_of(failure->address)),
                            offset_of(failure->address)};
    }
    if (direct) return std::nullopt;
    pool.parallel_for(static_cast<std::int64_t>(places.size()), kGrain,
                      [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t i = begin; i < end; ++i) {
                              std::memcpy(out + places[i] * row_bytes_,
                                          rows.data() + i * row_bytes_,
                                          static_cast<std::size_t>(row_bytes_));
                          }
                      });
    return std::nullopt;
}

}  // namespace gramary::offload
