#pragma once
#include <cstdint>
#include <optional>

#include "hash/flat_batch.hpp"
#include "offload/layout.hpp"

namespace gramary::offload {

// A region as its engine's host code reads and writes it; `ring.hpp` tells the protocol.
//
// Owns nothing. Each call is whole: an interrupt of Python's comes before it or behind it. What it
// reads another process may have written, so nothing read here decides where is written. Places
// are those of the region's own layout.
class EngineView {
 public:
    EngineView(std::uintptr_t base, const RegionLayout& layout)
        : base_(base), num_tables_(layout.num_tables()), region_(layout.at(base)) {}

    // Host lane.

    // A token outside the vocabulary, by its index in the flattened tensor.
    struct WrongToken {
        bool is_history;
        std::int64_t index;
    };
    // Copies a request's inputs and marks each table as requested, unless a token is wrong. The
    // history of a request without tokens may hold anything. Throws std::invalid_argument for a
    // batch that does not fit.
    std::optional<WrongToken> write_inputs(std::uint64_t number, const FlatBatch& batch,
                                           std::int64_t vocab_size);
    // Tells the service of the newest request: the doorbell.
    void announce(std::uint64_t number) noexcept {
        store_release(region_.header->host_number, number);
    }
    std::uint64_t announced() const noexcept { return load_acquire(region_.header->host_number); }
    // Takes the inputs of a request back whose slot was released; waits while the service copies
    // them. False after the time-out.
    bool take_back(std::uint64_t number, double timeout_s);

    // Stream lane.

    // Marks each table of a request as requested, whose ids are in place.
    void request_slot(const SlotPlaces& slot, std::uint64_t number, std::int64_t num_tokens);
    // Writes a complete request's number: the doorbell.
    void ring_slot(const SlotPlaces& slot, std::uint64_t number) noexcept {
        store_release(header(slot).number, number);
    }
    std::uint64_t slot_number(const SlotPlaces& slot) const noexcept {
        return load_acquire(header(slot).number);
    }

    // States, in either lane.

    bool was_asked(const SlotPlaces& slot, std::uint64_t number) const noexcept {
        return number > 0 && number <= slot_number(slot);
    }
    bool was_asked(const InputPlaces&, std::uint64_t number) const noexcept {
        return number > 0 && number <= announced();
    }
    // Gives a table up; false where its answer was published first.
    bool abandon(const StatePlaces& places, std::uint64_t number, std::size_t table_index) {
        return swap_state(state(places, table_index), state_of(number, Phase::requested),
                          state_of(number, Phase::abandoned));
    }
    bool is_in(const StatePlaces& places, std::uint64_t number, std::size_t table_index,
               Phase phase) const {
        return load_acquire(state(places, table_index)) == state_of(number, phase);
    }
    bool is_settled(const StatePlaces& places, std::uint64_t number,
                    std::size_t table_index) const {
        return is_in(places, number, table_index, Phase::published) ||
               is_in(places, number, table_index, Phase::failed) ||
               is_in(places, number, table_index, Phase::abandoned);
    }

    // Answers and slots.

    std::uintptr_t ids_address(const SlotPlaces& slot, std::size_t table_index) const {
        return base_ + slot.ids.at(table_index);
    }
    std::uintptr_t rows_address(const SlotPlaces& slot, std::size_t table_index) const {
        return base_ + slot.rows.at(table_index);
    }

    bool wait_ready(const SlotPlaces& slot, std::size_t table_index, double timeout_s) const;
    // Ends a table's progress and raises its flag; for whoever gave the request up.
    void raise_ready(const SlotPlaces& slot, std::size_t table_index, std::uint64_t number) {
        raise_to(answer(slot, table_index).progress, progress_of(number, kParts));
        store_release(answer(slot, table_index).ready, std::uint32_t{1});
    }
    void clear_ready(const SlotPlaces& slot, std::size_t table_index) {
        store_release(answer(slot, table_index).ready, std::uint32_t{0});
    }
    Answer& answer(const SlotPlaces& slot, std::size_t table_index) const {
        return *at_place<Answer>(base_, slot.answers.at(table_index));
    }
    // Whether a table's answer is this request's and says that its rows are there.
    bool has_rows(const SlotPlaces& slot, std::size_t table_index, std::uint64_t number) const {
        const Answer& told = answer(slot, table_index);
        return load_acquire(told.number) == number &&
               told.failure == static_cast<std::int32_t>(Failure::none);
    }
    std::uint64_t released(const SlotPlaces& slot) const noexcept {
        return load_acquire(header(slot).released);
    }
    // Says that a request's rows were taken: the slot may be overwritten.
    void release(const SlotPlaces& slot, std::uint64_t number) noexcept {
        store_release(header(slot).released, number);
    }
    // Lowers every table's flag, then releases; doing it again changes nothing.
    void free_slot(const SlotPlaces& slot, std::uint64_t number);
    std::uint64_t done(const SlotPlaces& slot) const noexcept {
        return load_acquire(header(slot).done);
    }

    // The service.

    void ask_to_stop() noexcept { store_release(region_.header->stop, std::uint32_t{1}); }
    bool is_served() const noexcept {
        return load_acquire(region_.header->service_state) ==
               static_cast<std::uint32_t>(ServiceState::running);
    }
    std::int64_t counter(std::size_t index) const noexcept {
        return load_acquire(region_.header->counters[index]);
    }

    std::uintptr_t base() const noexcept { return base_; }

 private:
    SlotHeader& header(const SlotPlaces& slot) const noexcept {
        return *at_place<SlotHeader>(base_, slot.header);
    }
    // Throws std::out_of_range for a table that there is not.
    std::uint64_t& state(const StatePlaces& places, std::size_t table_index) const;
    void mark_requested(std::uint64_t* states, std::uint64_t number) noexcept;

    std::uintptr_t base_;
    std::size_t num_tables_;
    Region region_;
};

}  // namespace gramary::offload
