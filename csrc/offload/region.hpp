#pragma once
#include <cstdint>
#include <vector>

#include "offload/ring.hpp"

namespace gramary::offload {

// Where the parts of one slot lie.
struct Slot {
    struct Table {
        Answer* answer;
        // [max_tokens * heads]; written by the requester (stream lane) or the service (host lane).
        std::int64_t* ids;
        std::uint8_t* rows;  // [max_tokens * heads, row_bytes]
    };

    SlotHeader* header;
    std::vector<Table> tables;
};

// Where one entry of host-lane inputs lies.
struct Input {
    InputHeader* header;
    std::int64_t* tokens;
    std::int64_t* history;
    std::int32_t* starts;
};

// A view of the shared memory; owns nothing.
struct Region {
    RegionHeader* header;
    std::vector<Slot> host_slots;
    std::vector<Slot> stream_slots;
    std::vector<Input> inputs;
    std::int64_t max_tokens;
    std::int64_t max_requests;
    std::int64_t history_length;  // columns of an input's history

    Slot& host_slot(std::uint64_t number) { return host_slots[(number - 1) % host_slots.size()]; }
    Input& input(std::uint64_t number) { return inputs[(number - 1) % inputs.size()]; }
};

}  // namespace gramary::offload
