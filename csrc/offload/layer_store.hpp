#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "disk/disk_reader.hpp"
#include "hash/ngram_hasher.hpp"
#include "offload/hot_pool.hpp"
#include "offload/ring.hpp"

namespace gramary::offload {

// Why a layer's rows could not be had.
struct StoreFailure {
    Failure what;
    std::int32_t error = 0;
    std::int32_t file = -1;
    std::int64_t offset = 0;
};

// The rows of one layer's table that the service can reach: a host extent, a disk extent.
//
// Rows elsewhere (device extents, foreign shards, id -1) are zero in the result; the consumer knows
// those of device extents by their ids. Holds no rows itself; thread-safe.
class LayerStore {
 public:
    struct HostExtent {
        const std::uint8_t* rows;
        std::int64_t first_row;
        std::int64_t num_rows;
    };
    struct DiskExtent {
        DiskReader* reader;
        std::int64_t first_row;
        std::int64_t num_rows;
    };

    LayerStore(NgramHasher hasher, std::int64_t num_table_rows, std::int64_t row_bytes,
               HostExtent host, DiskExtent disk);

    std::int64_t num_heads() const noexcept { return hasher_.num_heads(); }
    std::int64_t history_length() const noexcept { return hasher_.ngram_size() - 1; }
    std::int64_t row_bytes() const noexcept { return row_bytes_; }
    bool has_disk_rows() const noexcept { return disk_.num_rows > 0; }

    // Ids of a batch; a wrong token or history token is a failure whose offset is its index.
    std::optional<StoreFailure> hash(const FlatBatch& batch, std::int64_t* ids,
                                     HotPool& pool) const;

    // Looks at the ids of a stream request, which a GPU wrote: the first out of the table fails.
    std::optional<StoreFailure> check(std::span<const std::int64_t> ids) const noexcept;

    // Writes row i to out + i * row_bytes. Disk rows of one call are read together, each distinct
    // block once.
    std::optional<StoreFailure> gather(std::span<const std::int64_t> ids, std::uint8_t* out,
                                       HotPool& pool) const;

 private:
    // Copies host rows, clears what lies nowhere here, and leaves disk rows alone.
    void copy_host_rows(std::span<const std::int64_t> ids, std::uint8_t* out, HotPool& pool) const;
    std::optional<StoreFailure> read_disk_rows(std::span<const std::int64_t> ids, std::uint8_t* out,
                                               HotPool& pool) const;

    NgramHasher hasher_;
    std::int64_t num_table_rows_;
    std::int64_t row_bytes_;
    HostExtent host_;
    DiskExtent disk_;
};

}  // namespace gramary::offload
