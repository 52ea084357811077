#pragma once
#include <cstddef>
#include <cstdint>

namespace gramary {

// XXH64 of `size` bytes, the value of the public specification (xxHash fast digest algorithm,
// version 0.1.1, "XXH64 algorithm description"), with digests as integers.
std::uint64_t xxh64(const void* data, std::size_t size, std::uint64_t seed) noexcept;

std::uint64_t load_u64_little_endian(const std::uint8_t* bytes) noexcept;
void store_u64_little_endian(std::uint8_t* bytes, std::uint64_t value) noexcept;

}  // namespace gramary
