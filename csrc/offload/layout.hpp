#pragma once
#include <cstdint>
#include <vector>

#include "offload/region.hpp"

namespace gramary::offload {

// Sizes of a region, from which its layout follows; equal for equal sizes on both sides.
struct RegionShape {
    std::int64_t max_tokens;
    std::int64_t max_requests;
    std::int64_t history_length;          // the widest table's ngram_size - 1
    std::vector<std::int64_t> num_heads;  // of each table
    std::vector<std::int64_t> row_bytes;  // of each table's encoded rows
    std::int64_t num_host_slots;
    std::int64_t num_stream_slots;
    std::int64_t num_inputs;
};

// Places are byte offsets from the begin of the region.

// What is settled by swap lies with a request's ids (stream lane) or inputs (host lane).
struct StatePlaces {
    std::uint64_t header;
    std::uint64_t states;  // a word for each table
};

struct SlotPlaces : StatePlaces {
    std::vector<std::uint64_t> answers;  // of each table
    std::vector<std::uint64_t> ids;
    std::vector<std::uint64_t> rows;
};

struct InputPlaces : StatePlaces {
    std::uint64_t tokens;
    std::uint64_t history;
    std::uint64_t starts;
};

// Where everything lies in a region of one shape.
struct RegionLayout {
    // Throws std::invalid_argument for sizes below their least, std::overflow_error for a region
    // that no machine could address.
    explicit RegionLayout(RegionShape its_shape);

    // What the service sees of a region at an address.
    Region at(std::uintptr_t base) const;
    // The constant words at the begin of a region: what tells it from other memory.
    void write_header(std::uintptr_t base) const;
    bool has_header(std::uintptr_t base) const;

    std::size_t num_tables() const noexcept { return shape.num_heads.size(); }

    RegionShape shape;
    std::vector<SlotPlaces> host_slots;
    std::vector<SlotPlaces> stream_slots;
    std::vector<InputPlaces> inputs;
    std::uint64_t num_bytes;
};

template <class T>
T* at_place(std::uintptr_t base, std::uint64_t place) noexcept {
    return reinterpret_cast<T*>(base + place);
}

}  // namespace gramary::offload
