#include "offload/layout.hpp"

#include <stdexcept>
#include <utility>

namespace gramary::offload {
namespace {

constexpr std::uint64_t kPage = 4096;

// Gives out places one behind the other. Sizes may be anybody's: none wraps around.
class Places {
 public:
    std::uint64_t take(std::uint64_t alignment, std::uint64_t bytes, std::uint64_t count = 1,
                       std::uint64_t across = 1) {
        const std::uint64_t place = sum(end_, alignment - 1) / alignment * alignment;
        end_ = sum(place, product(product(bytes, count), across));
        return place;
    }

 private:
    static std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
        std::uint64_t result;
        if (__builtin_add_overflow(a, b, &result)) throw std::overflow_error("region");
        return result;
    }
    static std::uint64_t product(std::uint64_t a, std::uint64_t b) {
        std::uint64_t result;
        if (__builtin_mul_overflow(a, b, &result)) throw std::overflow_error("region");
        return result;
    }

    std::uint64_t end_ = 0;
};

void require_sizes(const RegionShape& shape) {
    bool is_right = shape.max_tokens > 0 && shape.max_requests > 0 && shape.history_length > 0 &&
                    shape.num_host_slots > 0 && shape.num_stream_slots >= 0 &&
                    shape.num_inputs > 0 && !shape.num_heads.empty() &&
                    shape.num_heads.size() <= kMaxTables &&
                    shape.num_heads.size() == shape.row_bytes.size();
    for (const std::int64_t heads : shape.num_heads) is_right &= heads > 0;
    for (const std::int64_t bytes : shape.row_bytes) is_right &= bytes > 0;
    if (!is_right) throw std::invalid_argument("sizes of a region");
}

SlotPlaces place_slot(const RegionShape& shape, Places& places) {
    SlotPlaces slot;
    slot.header = places.take(kLine, sizeof(SlotHeader));
    slot.states = slot.header + offsetof(SlotHeader, states);
    const auto max_tokens = static_cast<std::uint64_t>(shape.max_tokens);
    for (std::size_t i = 0; i < shape.num_heads.size(); ++i) {
        slot.answers.push_back(places.take(kLine, sizeof(Answer)));
    }
    for (std::size_t i = 0; i < shape.num_heads.size(); ++i) {
        const auto heads = static_cast<std::uint64_t>(shape.num_heads[i]);
        const auto row_bytes = static_cast<std::uint64_t>(shape.row_bytes[i]);
        slot.ids.push_back(places.take(kPage, sizeof(std::int64_t), max_tokens, heads));
        slot.rows.push_back(places.take(kPage, row_bytes, max_tokens, heads));
    }
    return slot;
}

InputPlaces place_input(const RegionShape& shape, Places& places) {
    const auto num_tokens = static_cast<std::uint64_t>(shape.max_tokens);
    const auto num_requests = static_cast<std::uint64_t>(shape.max_requests);
    InputPlaces input;
    input.header = places.take(kLine, sizeof(InputHeader));
    input.states = input.header + offsetof(InputHeader, states);
    input.tokens = places.take(kLine, sizeof(std::int64_t), num_tokens);
    input.history = places.take(kLine, sizeof(std::int64_t), num_requests,
                                static_cast<std::uint64_t>(shape.history_length));
    input.starts = places.take(kLine, sizeof(std::int32_t), num_requests + 1);
    return input;
}

std::vector<Slot> slots_at(std::uintptr_t base, const std::vector<SlotPlaces>& places) {
    std::vector<Slot> slots;
    for (const SlotPlaces& place : places) {
        Slot slot{at_place<SlotHeader>(base, place.header), {}};
        for (std::size_t i = 0; i < place.answers.size(); ++i) {
            slot.tables.push_back({at_place<Answer>(base, place.answers[i]),
                                   at_place<std::int64_t>(base, place.ids[i]),
                                   at_place<std::uint8_t>(base, place.rows[i])});
        }
        slots.push_back(std::move(slot));
    }
    return slots;
}

}  // namespace

RegionLayout::RegionLayout(RegionShape its_shape) : shape(std::move(its_shape)) {
    require_sizes(shape);
    Places places;
    places.take(kLine, sizeof(RegionHeader));
    for (std::int64_t i = 0; i < shape.num_host_slots; ++i) {
        host_slots.push_back(place_slot(shape, places));
    }
    for (std::int64_t i = 0; i < shape.num_stream_slots; ++i) {
        stream_slots.push_back(place_slot(shape, places));
    }
    for (std::int64_t i = 0; i < shape.num_inputs; ++i) {
        inputs.push_back(place_input(shape, places));
    }
    num_bytes = places.take(kPage, 0);
}

Region RegionLayout::at(std::uintptr_t base) const {
    Region region{at_place<RegionHeader>(base, 0),
                  slots_at(base, host_slots),
                  slots_at(base, stream_slots),
                  {},
                  shape.max_tokens,
                  shape.max_requests,
                  shape.history_length};
    for (const InputPlaces& place : inputs) {
        region.inputs.push_back({at_place<InputHeader>(base, place.header),
                                 at_place<std::int64_t>(base, place.tokens),
                                 at_place<std::int64_t>(base, place.history),
                                 at_place<std::int32_t>(base, place.starts)});
    }
    return region;
}

void RegionLayout::write_header(std::uintptr_t base) const {
    auto& header = *at_place<RegionHeader>(base, 0);
    header.magic = kMagic;
    header.version = kVersion;
    header.num_tables = static_cast<std::uint32_t>(num_tables());
    header.region_bytes = num_bytes;
}

bool RegionLayout::has_header(std::uintptr_t base) const {
    const auto& header = *at_place<RegionHeader>(base, 0);
    return header.magic == kMagic && header.version == kVersion &&
           header.num_tables == num_tables() && header.region_bytes == num_bytes;
}

}  // namespace gramary::offload
