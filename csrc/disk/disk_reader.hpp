#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "disk/block_plan.hpp"
#include "disk/disk_stats.hpp"
#include "disk/file_set.hpp"
#include "disk/file_watch.hpp"
#include "disk/read_backend.hpp"
#include "disk/read_task.hpp"
#include "disk/row_map.hpp"
#include "disk/scripted_backend.hpp"

namespace gramary {

// How a reader goes about it.
struct DiskOptions {
    std::string reader = "auto";  // "auto", "io_uring", "pread", "mmap"
    bool direct_io = true;
    int num_threads = 0;  // of the pread backend; 0 chooses
    std::int64_t mmap_budget_bytes = std::int64_t{256} << 20;
};

// Reads encoded rows from files.
//
// A batch is located, sorted and planned (block_plan). A small one goes to the backend through the
// page cache, on the calling thread. Of a large one, what the page cache holds is read by the
// shared thread pool, unless a sample shows that it holds too little (residency); what it misses
// goes to the backend, through O_DIRECT when there is much of it. The batch itself is the
// measurement: no state is carried from one to the next. Any number of threads may read at once,
// and small batches never wait for large ones; destroyed only when no thread reads.
class DiskReader {
 public:
    // Thrown by the constructor when the reader asked for cannot be had.
    struct Unsupported : std::runtime_error {
        using std::runtime_error::runtime_error;
    };

    DiskReader(RowMap map, std::vector<FileIdentity> files, const BlockChecks& checks,
               const DiskOptions& options);
    ~DiskReader();

    // Fills row places[i] of `out` with row row_ids[i], or row i where `places` is empty;
    // 0 <= id < num_rows, places differ. After a failure these rows of the output are unspecified
    // and the next call starts afresh.
    std::optional<ReadFailure> read(std::span<const std::int64_t> row_ids, std::uint8_t* out,
                                    std::span<const std::int64_t> places = {});

    const RowMap& map() const noexcept { return map_; }
    const FileSet& files() const noexcept { return files_; }
    FileWatch& watch() noexcept { return watch_; }
    const DiskStats& stats() const noexcept { return stats_; }
    const char* backend_name() const noexcept { return backend_->name(); }
    // For tests: lets batches from now on fail or wait. Not while a read is running.
    void set_script(std::vector<ScriptedFault> faults);
    // What this machine cannot do of what was wanted, in words; what it grants may change.
    std::vector<std::string> notes() const;

 private:
    struct Scratch;
    struct ScratchLoan;
    std::optional<ReadFailure> find_known_change(std::span<const std::int64_t> files);
    std::optional<ReadFailure> find_changed(std::span<const std::int64_t> files);
    std::optional<ReadFailure> read_located(std::uint8_t* out, Scratch& scratch);
    std::optional<ReadFailure> read_fragments(std::uint8_t* out, Scratch& scratch);
    std::optional<ReadFailure> read_cached_part(std::uint8_t* out, Scratch& scratch,
                                                bool asks_first);
    std::optional<ReadFailure> run_backend(std::uint8_t* out, Scratch& scratch, bool direct);
    void note_direct_refusal();
    void choose_backend(const DiskOptions& options);
    ReadRules buffered_rules() const noexcept;
    ReadRules direct_rules() const noexcept;

    RowMap map_;
    FileSet files_;
    FileWatch watch_;
    BlockChecks checks_;
    DiskStats stats_;
    std::unique_ptr<ReadBackend> backend_;
    std::mutex scratch_mutex_;
    std::vector<std::unique_ptr<Scratch>> idle_scratch_;
    std::vector<std::string> notes_;  // of what was found out at opening
};

}  // namespace gramary
