#pragma once
#include <cstddef>
#include <cstdint>

namespace gramary {

// XXH64 of `size` bytes, the value of the public specification (xxHash fast digest algorithm,
// version 0.1.1, "XXH64 algorithm description"), with digests as integers.
std::uint64_t xxh64(const void* data, std::size_t size, std::uint64_t seed) noexcept;

// The parts of the above, for whoever takes the stripes of several inputs at once.
constexpr std::size_t kXxh64StripeBytes = 32;
constexpr std::uint64_t kXxh64Prime1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t kXxh64Prime2 = 0xC2B2AE3D27D4EB4F;
struct Xxh64Accumulators {
    std::uint64_t lanes[4];
};
Xxh64Accumulators start_xxh64(std::uint64_t seed) noexcept;
// The digest of `size` bytes after all their whole stripes, of which there is one at least; what is
// behind the last of them begins at `tail`.
std::uint64_t finish_xxh64(const Xxh64Accumulators& accumulators, const std::uint8_t* tail,
                           std::size_t size) noexcept;

std::uint64_t load_u64_little_endian(const std::uint8_t* bytes) noexcept;
void store_u64_little_endian(std::uint8_t* bytes, std::uint64_t value) noexcept;

}  // namespace gramary
