#include "disk/xxh64.hpp"

#include <bit>
#include <cstring>

namespace gramary {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
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

}  // namespace

std::uint64_t xxh64(const void* data, std::size_t size, std::uint64_t seed) noexcept {
    const auto* p = static_cast<const std::uint8_t*>(data);
    const std::uint8_t* const end = p + size;
    std::uint64_t hash;
    if (size >= 32) {
        std::uint64_t a = seed + kPrime1 + kPrime2;
        std::uint64_t b = seed + kPrime2;
        std::uint64_t c = seed;
        std::uint64_t d = seed - kPrime1;
        for (; end - p >= 32; p += 32) {
            a = mix_lane(a, load_little_endian<std::uint64_t>(p));
            b = mix_lane(b, load_little_endian<std::uint64_t>(p + 8));
            c = mix_lane(c, load_little_endian<std::uint64_t>(p + 16));
            d = mix_lane(d, load_little_endian<std::uint64_t>(p + 24));
        }
        hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    } else {
        hash = seed + kPrime5;
    }
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

std::uint64_t load_u64_little_endian(const std::uint8_t* bytes) noexcept {
    return load_little_endian<std::uint64_t>(bytes);
}

void store_u64_little_endian(std::uint8_t* bytes, std::uint64_t value) noexcept {
    if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
    std::memcpy(bytes, &value, sizeof value);
}

}  // namespace gramary
