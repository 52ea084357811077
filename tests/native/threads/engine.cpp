#include "engine.hpp"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "expect.hpp"
#include "rows.hpp"

namespace gramary::threads {
namespace {

using namespace offload;

constexpr std::int64_t kVocabSize = 1000;
constexpr std::int64_t kHistoryLength = 2;
constexpr std::int64_t kMaxRequests = 4;
constexpr std::size_t kNumHostSlots = 2;
const std::vector<std::int64_t> kMultipliers{911, 1013, 1117};
const std::vector<std::int64_t> kSizes{1009, 1013, 1019, 1021};
constexpr std::int64_t kNumHeads = 4;

NgramHasher make_hasher() {
    std::vector<std::int64_t> offsets(kSizes.size(), 0);
    std::partial_sum(kSizes.begin(), kSizes.end() - 1, offsets.begin() + 1);
    return NgramHasher(kVocabSize, 0, kMultipliers, kSizes, offsets);
}

// Hands out the parts of a region, each on lines of its own.
class Places {
 public:
    explicit Places(std::vector<std::uint64_t>& memory) : at_(memory.data()) {
        while (reinterpret_cast<std::uintptr_t>(at_) % kLine != 0) ++at_;
    }
    template <class T>
    T* take(std::size_t count) {
        T* const taken = reinterpret_cast<T*>(at_);
        at_ += (count * sizeof(T) + kLine - 1) / kLine * kLine / sizeof(std::uint64_t);
        return taken;
    }
    Slot take_slot() {
        Slot slot{take<SlotHeader>(1), {}};
        constexpr std::size_t kNumIds = Engine::kMaxTokens * kNumHeads;
        for (int table_index = 0; table_index < Engine::kNumTables; ++table_index) {
            slot.tables.push_back({take<Answer>(1), take<std::int64_t>(kNumIds),
                                   take<std::uint8_t>(kNumIds * kRowBytes)});
        }
        return slot;
    }

 private:
    std::uint64_t* at_;
};

}  // namespace

std::int64_t num_table_rows() {
    return std::accumulate(kSizes.begin(), kSizes.end(), std::int64_t{0});
}

Engine::Engine() : memory_((std::size_t{4} << 20) / sizeof(std::uint64_t), 0) {
    Places places(memory_);
    region_ =
        Region{places.take<RegionHeader>(1), {}, {}, {}, kMaxTokens, kMaxRequests, kHistoryLength};
    for (std::size_t i = 0; i < kNumHostSlots; ++i) {
        region_.host_slots.push_back(places.take_slot());
        region_.inputs.push_back({places.take<InputHeader>(1),
                                  places.take<std::int64_t>(kMaxTokens),
                                  places.take<std::int64_t>(kMaxRequests * kHistoryLength),
                                  places.take<std::int32_t>(kMaxRequests + 1)});
    }
    region_.stream_slots.push_back(places.take_slot());
}

void Engine::join(std::list<Tenant>& tenants, const std::vector<std::uint8_t>& host_rows,
                  DiskReader& disk) {
    std::vector<LayerStore> stores;
    stores.emplace_back(make_hasher(), num_table_rows(), kRowBytes,
                        RowExtent{host_rows.data(), 0, num_table_rows()},
                        LayerStore::DiskExtent{nullptr, 0, 0}, false);
    stores.emplace_back(
        make_hasher(), num_table_rows(), kRowBytes, RowExtent{host_rows.data(), 0, kFirstDiskRow},
        LayerStore::DiskExtent{&disk, kFirstDiskRow, num_table_rows() - kFirstDiskRow}, false);
    tenants.emplace_back(region_, std::move(stores), std::vector<Hold>{});
}

bool Engine::is_stopped() const {
    return load_acquire(region_.header->service_state) ==
           static_cast<std::uint32_t>(ServiceState::stopped);
}

bool Engine::await(const Slot& slot, int table_index) const {
    std::uint32_t& ready = slot.tables[static_cast<std::size_t>(table_index)].answer->ready;
    while (!load_acquire(ready)) {
        if (is_stopped() && !load_acquire(ready)) return false;
        std::this_thread::yield();
    }
    store_release(ready, std::uint32_t{0});
    return true;
}

bool Engine::await_done(const Slot& slot, std::uint64_t number) const {
    while (load_acquire(slot.header->done) < number) {
        if (is_stopped() && load_acquire(slot.header->done) < number) return false;
        std::this_thread::yield();
    }
    return true;
}

void Engine::check_rows(const Slot& slot, int table_index, std::int64_t num_tokens) {
    const Slot::Table& parts = slot.tables[static_cast<std::size_t>(table_index)];
    for (std::int64_t i = 0; i < num_tokens * kNumHeads; ++i) {
        EXPECT(is_row(parts.ids[i], parts.rows + i * kRowBytes));
    }
}

bool Engine::use_stream_lane(std::mt19937_64& random) {
    const Slot& slot = region_.stream_slots[0];
    const std::uint64_t number = stream_number_ + 1;
    const auto num_tokens = static_cast<std::int64_t>(1 + random() % 64);
    for (const Slot::Table& table : slot.tables) {
        std::generate_n(table.ids, num_tokens * kNumHeads, [&] {
            return static_cast<std::int64_t>(random() %
                                             static_cast<std::uint64_t>(num_table_rows()));
        });
    }
    store_release(slot.header->num_tokens, num_tokens);
    for (int table_index = 0; table_index < kNumTables; ++table_index) {
        store_release(slot.header->states[table_index], state_of(number, Phase::requested));
    }
    store_release(slot.header->number, number);
    stream_number_ = number;
    for (int table_index = 0; table_index < kNumTables; ++table_index) {
        if (!await(slot, table_index)) return false;
        const std::uint64_t state = load_acquire(slot.header->states[table_index]);
        EXPECT(state >> 3 == number);
        if (state == state_of(number, Phase::published)) {
            check_rows(slot, table_index, num_tokens);
            ++num_answered_;
        }
    }
    // As in quarantine: what was given up may still be written to.
    if (!await_done(slot, number)) return false;
    store_release(slot.header->released, number);
    return true;
}

void Engine::give_up_stream_request() {
    const std::uint64_t number = stream_number_;
    const Slot& slot = region_.stream_slots[0];
    for (int table_index = 0; number > 0 && table_index < kNumTables; ++table_index) {
        if (!swap_state(slot.header->states[table_index], state_of(number, Phase::requested),
                        state_of(number, Phase::abandoned))) {
            continue;
        }
        Answer& answer = *slot.tables[static_cast<std::size_t>(table_index)].answer;
        raise_to(answer.progress, progress_of(number, kParts));
        store_release(answer.ready, std::uint32_t{1});
    }
}

std::uint64_t Engine::ask_host_lane(std::mt19937_64& random) {
    const std::uint64_t number = ++host_number_;
    const Input& input = region_.input(number);
    const auto num_tokens = static_cast<std::int32_t>(1 + random() % kMaxTokens);
    std::generate_n(input.tokens, num_tokens,
                    [&] { return static_cast<std::int64_t>(random() % kVocabSize); });
    std::fill_n(input.history, kHistoryLength, 0);
    input.starts[0] = 0;
    input.starts[1] = num_tokens;
    input.header->num_tokens = num_tokens;
    input.header->num_requests = 1;
    input.header->has_history = 1;
    input.header->number = number;
    for (int table_index = 0; table_index < kNumTables; ++table_index) {
        store_release(input.header->states[table_index], state_of(number, Phase::requested));
    }
    store_release(input.header->claim, state_of(number, Phase::requested));
    store_release(region_.header->host_number, number);
    return number;
}

bool Engine::use_host_lane(std::mt19937_64& random) {
    const std::uint64_t number = ask_host_lane(random);
    const Input& input = region_.input(number);
    const Slot& slot = region_.host_slot(number);
    const std::int64_t num_tokens = input.header->num_tokens;
    const bool is_canceled = number % 5 == 0;
    for (int table_index = 0; table_index < kNumTables; ++table_index) {
        std::uint64_t& state = input.header->states[table_index];
        if (is_canceled && swap_state(state, state_of(number, Phase::requested),
                                      state_of(number, Phase::abandoned))) {
            continue;
        }
        if (!await(slot, table_index)) return false;
        if (load_acquire(state) == state_of(number, Phase::published)) {
            check_rows(slot, table_index, num_tokens);
        }
    }
    // Inputs that were given up before the service began with them are taken back.
    swap_state(input.header->claim, state_of(number, Phase::requested),
               state_of(number, Phase::abandoned));
    if (!await_done(slot, number)) return false;
    store_release(slot.header->released, number);
    return true;
}

}  // namespace gramary::threads
