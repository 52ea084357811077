#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gramary::offload {

// The memory that an engine and its row service share: a header, then slots, then inputs.
//
// The engine's host code, its GPU and the service meet here and nowhere else, in one process or
// in several. Every field has one writer; a cache line is never written from two sides, but for
// the words that are settled by compare-and-swap.
//
// Whoever reads here reads what another process may write at any time. Each side takes a count, a
// number or an id out once, checks what it took and uses only that; what it must remember it keeps
// in memory of its own. Rows are bytes, whatever they say.
//
// One request's life, per table:
//   requester   writes inputs or ids, then state = requested(n) (host lane: then claim, likewise),
//               then the number: the slot's own (stream lane) or host_number. The number is the
//               doorbell; whoever reads it finds its request complete
//   service     waits until the slot's previous request was released, takes a copy of the inputs
//               (host lane), for as long as claim = claimed(n), writes the rows, raising
//               (host lane) `progress` as it goes, then the answer, then state: requested(n) ->
//               published(n) or failed(n), then ready
//   watchdog    gives up by state: requested(n) -> abandoned(n), then ready, likewise only once
//               the slot's previous request was released
//   consumer    waits for ready, clears it, compares the state with published(n), takes the rows,
//               then (behind the last table) writes released = n; a consumer that copies rows
//               first may do so part by part behind `progress`, and judges them by the state
// Whoever wins the swap raises `progress` to its end, then `ready`, so that ready is raised once a
// request, and an answer that comes after its request was given up wakes nobody. Progress carries
// the request's number and only grows: what is left of an older request, or comes late, never
// passes for a newer one's. The service answers a slot's requests in order, so a late writer never
// overwrites rows of a newer request.
// An entry of inputs is free once both sides have let it go: the engine when the request's slot is
// released, the service when it has its copy. One that the service has not begun with the engine
// takes back: claim goes from requested(n) to abandoned(n), and the service passes it over.
//
// `layout.hpp` decides where each of the structures here lies in the region. Python is given both
// by name (`bind_region.cpp`) and repeats neither.

inline constexpr std::uint64_t kMagic = 0x474E495259524D47;  // "GMRYRING", little endian
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::size_t kLine = 64;

enum class Phase : std::uint64_t {
    idle = 0,
    requested = 1,
    published = 2,
    failed = 3,
    abandoned = 4,
    claimed = 5,  // of inputs: the service copies them
};

constexpr std::uint64_t state_of(std::uint64_t number, Phase phase) noexcept {
    return number << 3 | static_cast<std::uint64_t>(phase);
}

// Parts of a request's rows that progress is told by.
inline constexpr std::uint64_t kParts = 8;

// Counted around: 32 bits are what a stream can wait for.
constexpr std::uint32_t progress_of(std::uint64_t number, std::uint64_t part) noexcept {
    return static_cast<std::uint32_t>(number * kParts + part);
}

enum class ServiceState : std::uint32_t { starting = 0, running = 1, stopped = 2 };

inline constexpr std::size_t kMaxTables = 8;

struct alignas(kLine) RegionHeader {
    // Written once, before the service starts.
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t num_tables;
    std::uint64_t region_bytes;
    // Written by the engine.
    alignas(kLine) std::uint64_t host_number;  // newest request of the host lane
    std::uint32_t stop;
    // Written by the service.
    alignas(kLine) std::uint32_t service_state;
    std::uint32_t service_pid;
    // Written by the service: running totals.
    alignas(kLine) std::int64_t counters[16];
};

// What the counters count.
enum class Counter : std::size_t {
    host_requests,
    stream_requests,
    rows,
    failures,
    late_answers,
    waiting_ns,  // for the release of a slot whose next request was there
    gathering_ns,
    host_rows,  // that came from memory
    host_bytes,
    disk_rows,  // that were asked of files
    disk_bytes,
    dropped_spans,
};

enum class Failure : std::int32_t {
    none = 0,
    read = 1,
    checksum = 2,
    token = 3,
    row_id = 4,
    inputs = 5,    // that do not fit the region
    unknown = -1,  // stands for a word that no service wrote
};

constexpr Failure failure_of(std::int64_t word) noexcept {
    return word >= 0 && word <= static_cast<std::int64_t>(Failure::inputs)
               ? static_cast<Failure>(word)
               : Failure::unknown;
}

// One table's answer in a slot, written by the service.
struct alignas(kLine) Answer {
    std::uint64_t number;  // the request answered, well or not
    std::int32_t failure;  // Failure; the rest says more
    std::int32_t error;    // errno, 0 for a short read
    std::int32_t file;     // index into the table's files, -1: none
    // progress_of(number, part): the rows' first `part` eighths are in place.
    std::uint32_t progress;
    std::int64_t offset;  // byte of the file, or index of the wrong token or id
    // Raised by the service or the watchdog, cleared by the consumer.
    alignas(kLine) std::uint32_t ready;
};

struct alignas(kLine) SlotHeader {
    // Written by the requester of the stream lane; the service writes both in a host-lane slot.
    std::uint64_t number;
    std::int64_t num_tokens;
    // Written by the consumer.
    alignas(kLine) std::uint64_t released;
    // Written by the service behind the last table.
    alignas(kLine) std::uint64_t done;
    // Settled by swap, a table each (stream lane).
    alignas(kLine) std::uint64_t states[kMaxTables];
};

// One host-lane request's inputs; tokens, history and starts follow at their own places.
struct alignas(kLine) InputHeader {
    std::uint64_t number;
    std::int64_t num_tokens;
    std::int64_t num_requests;
    std::int64_t has_history;
    // Settled by swap: whose the inputs are.
    alignas(kLine) std::uint64_t claim;
    // Settled by swap, a table each.
    alignas(kLine) std::uint64_t states[kMaxTables];
};

static_assert(sizeof(RegionHeader) == 5 * kLine);
static_assert(offsetof(RegionHeader, host_number) == kLine);
static_assert(offsetof(RegionHeader, service_state) == 2 * kLine);
static_assert(sizeof(Answer) == 2 * kLine && offsetof(Answer, ready) == kLine);
static_assert(sizeof(SlotHeader) == 4 * kLine && sizeof(InputHeader) == 3 * kLine);

// Words of the shared memory, with the order that the protocol needs.
template <class T>
T load_acquire(const T& word) noexcept {
    return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_acquire);
}
template <class T>
void store_release(T& word, T value) noexcept {
    std::atomic_ref<T>(word).store(value, std::memory_order_release);
}
inline void add(std::int64_t& word, std::int64_t amount) noexcept {
    std::atomic_ref<std::int64_t>(word).fetch_add(amount, std::memory_order_release);
}
// Raises a word that is counted around; one that is further already stays.
inline void raise_to(std::uint32_t& word, std::uint32_t value) noexcept {
    std::atomic_ref<std::uint32_t> shared(word);
    std::uint32_t seen = shared.load(std::memory_order_relaxed);
    while (static_cast<std::int32_t>(value - seen) > 0 &&
           !shared.compare_exchange_weak(seen, value, std::memory_order_acq_rel)) {
    }
}
// Takes elements out of the shared memory; from here on only the copy is looked at.
template <class T>
void copy_out(const T* shared, std::size_t count, T* own) noexcept {
    std::memcpy(own, shared, count * sizeof(T));
    // The compiler must not read the original again in the copy's place.
    std::atomic_signal_fence(std::memory_order_seq_cst);
}
inline bool swap_state(std::uint64_t& state, std::uint64_t from, std::uint64_t to) noexcept {
    return std::atomic_ref<std::uint64_t>(state).compare_exchange_strong(from, to,
                                                                         std::memory_order_acq_rel);
}

}  // namespace gramary::offload
