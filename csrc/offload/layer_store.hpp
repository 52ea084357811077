#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/extent.hpp"
#include "base/pool.hpp"
#include "disk/disk_reader.hpp"
#include "hash/ngram_hasher.hpp"
#include "offload/ring.hpp"
#include "rows/row_codec.hpp"
#include "rows/row_lookup.hpp"

namespace gramary::offload {

// Why a table's rows could not be had.
struct StoreFailure {
    Failure what;
    std::int32_t error = 0;
    std::int32_t file = -1;
    std::int64_t offset = 0;
};

// Where the rows of a gather came from.
struct GatheredRows {
    std::int64_t from_host = 0;
    std::int64_t from_disk = 0;
};

// Memory of one caller's gathers, kept from one to the next.
struct GatherScratch {
    std::vector<std::int64_t> taken;   // ids that others wrote
    std::vector<std::int64_t> places;  // of disk rows
    std::vector<std::int64_t> ids;     // of disk rows

    void make_room(std::size_t count) {
        if (ids.size() >= count) return;
        for (auto* numbers : {&taken, &places, &ids}) numbers->resize(count);
    }
};

// The rows of one table that the service can reach: a host extent, a disk extent.
//
// Rows elsewhere (device extents, foreign shards, id -1) are zero in the result; the consumer knows
// those of device extents by their ids. Holds no rows itself; thread-safe.
class LayerStore {
 public:
    using DiskExtent = Extent<DiskReader>;

    // is_sent_on: a device reads the results next (see RowSink).
    LayerStore(NgramHasher hasher, std::int64_t num_table_rows, std::int64_t row_bytes,
               RowExtent host, DiskExtent disk, bool is_sent_on);

    std::int64_t num_heads() const noexcept { return hasher_.num_heads(); }
    std::int64_t history_length() const noexcept { return hasher_.ngram_size() - 1; }
    std::int64_t row_bytes() const noexcept { return row_bytes_; }
    bool has_disk_rows() const noexcept { return disk_.num_rows > 0; }

    // Ids of a batch; a wrong token or history token is a failure whose offset is its index.
    std::optional<StoreFailure> hash(const FlatBatch& batch, std::int64_t* ids, Pool& pool) const;

    // Writes row i to out + i * row_bytes. Somebody else wrote the ids, and may write anew
    // meanwhile: they are taken out before they are looked at, and the first out of the table is a
    // failure. Disk rows of one call are read together, each distinct block once.
    std::optional<StoreFailure> gather(std::span<const std::int64_t> written, std::uint8_t* out,
                                       Pool& pool, GatherScratch& scratch,
                                       GatheredRows& gathered) const;

 private:
    // Where some rows are on disk. Ids are taken out all at once, and checked.
    std::optional<StoreFailure> read_mixed(std::span<const std::int64_t> written, std::uint8_t* out,
                                           Pool& pool, GatherScratch& scratch,
                                           GatheredRows& gathered) const;
    std::optional<StoreFailure> read_disk(std::int64_t count, std::uint8_t* out,
                                          GatherScratch& scratch) const;
    // Where all rows are in memory. Takes ids out piece by piece; gives the first wrong index.
    std::int64_t copy_written(std::span<const std::int64_t> written, std::uint8_t* out, Pool& pool,
                              GatheredRows& gathered) const;
    std::int64_t copy_piece(const std::int64_t* written, std::int64_t begin, std::int64_t end,
                            std::uint8_t* out, std::int64_t& num_from_host) const;
    std::int64_t count_host_rows(const std::int64_t* ids, std::int64_t count) const noexcept;

    NgramHasher hasher_;
    std::int64_t num_table_rows_;
    std::int64_t row_bytes_;
    // Rows pass as they are, so any codec's bytes are a run of one-byte codes.
    std::unique_ptr<RowCodec> bytes_;
    RowExtent host_;
    DiskExtent disk_;
    bool is_sent_on_;
};

}  // namespace gramary::offload
