#include "disk/xxh64.hpp"

#include <bit>
#include <cstring>

namespace gramary {
namespace {

constexpr std::uint64_t kPrime1 = kXxh64Prime1;
constexpr std::uint64_t kPrime2 = kXxh64Prime2;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5;

template <class Lane>
Lane load_little_endian(const std::uint8_t* bytes) noexcept {
    Lane lane;
    std::memcpy(&lane, bytes, sizeof lane);
    if constexpr (std::endian::native == std::endian::big) {
        if constexpr (sizeof lane == 8) return __builtin_bswap64(lane);
        if constexpr (sizeof lane == 4) return __builtin_bswap32(lane);
    }
    return lane;
}

std::uint64_t mix_lane(std::uint64_t accumulator, std::uint64_t lane) noexcept {
    return std::rotl(accumulator + lane * kPrime2, 31) * kPrime1;
}

std::uint64_t merge(std::uint64_t hash, std::uint64_t accumulator) noexcept {
    return (hash ^ mix_lane(0, accumulator)) * kPrime1 + kPrime4;
}

// What is left after the whole stripes, and the last mixing.
std::uint64_t finish(std::uint64_t hash, const std::uint8_t* tail, std::size_t size) noexcept {
    const std::uint8_t* p = tail;
    const std::uint8_t* const end = tail + size % kXxh64StripeBytes;
    hash += size;
    for (; end - p >= 8; p += 8) {
        hash ^= mix_lane(0, load_little_endian<std::uint64_t>(p));
        hash = std::rotl(hash, 27) * kPrime1 + kPrime4;
    }
    if (end - p >= 4) {
        hash ^= load_little_endian<std::uint32_t>(p) * kPrime1;
        hash = std::rotl(hash, 23) * kPrime2 + kPrime3;
        p += 4;
    }
    for (; p < end; ++p) {
        hash ^= *p * kPrime5;
        hash = std::rotl(hash, 11) * kPrime1;
    }
    hash ^= hash >> 33;
    hash *= kPrime2;
    hash ^= hash >> 29;
    hash *= kPrime3;
    return hash ^ (hash >> 32);
}

}  // namespace

Xxh64Accumulators start_xxh64(std::uint64_t seed) noexcept {
    return {{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1}};
}

std::uint64_t finish_xxh64(const Xxh64Accumulators& accumulators, const std::uint8_t* tail,
                           std::size_t size) noexcept {
    const auto& [a, b, c, d] = accumulators.lanes;
    const std::uint64_t hash =
        std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    return finish(merge(merge(merge(merge(hash, a), b), c), d), tail, size);
}

std::uint64_t xxh64(const void* data, std::size_t size, std::uint64_t seed) noexcept {
    const auto* p = static_cast<const std::uint8_t*>(data);
    if (size < kXxh64StripeBytes) return finish(seed + kPrime5, p, size);
    const std::uint8_t* const stripes_end = p + size / kXxh64StripeBytes * kXxh64StripeBytes;
    auto [a, b, c, d] = start_xxh64(seed).lanes;
    for (; p < stripes_end; p += kXxh64StripeBytes) {
        a = mix_lane(a, load_little_endian<std::uint64_t>(p));
        b = mix_lane(b, load_little_endian<std::uint64_t>(p + 8));
        c = mix_lane(c, load_little_endian<std::uint64_t>(p + 16));
        d = mix_lane(d, load_little_endian<std::uint64_t>(p + 24));
    }
    return finish_xxh64({{a, b, c, d}}, p, size);
}

std::uint64_t load_u64_little_endian(const std::uint8_t* bytes) noexcept {
    return load_little_endian<std::uint64_t>(bytes);
}

void store_u64_little_endian(std::uint8_t* bytes, std::uint64_t value) noexcept {
    if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
    std::memcpy(bytes, &value, sizeof value);
}

}  // namespace gramary
