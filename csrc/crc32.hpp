// CRC-32 (IEEE 802.3, as in zlib and zip), the fastest way that this CPU has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dcp_gds {

/// One way to compute the CRC. `update` takes and returns the raw register, which is the bitwise
/// complement of the CRC.
struct Crc32Kind {
    std::string_view name;
    std::uint32_t (*update)(std::uint32_t state, std::span<const std::byte> data) noexcept;
};

/// The ways that run on this CPU, the fastest first. The last is always "portable".
std::span<const Crc32Kind> crc32_kinds() noexcept;

/// CRC-32 of `data`, continuing `value`, the CRC of what comes before it (0: nothing does).
std::uint32_t crc32(std::span<const std::byte> data, std::uint32_t value) noexcept;
std::uint32_t crc32(const Crc32Kind& kind, std::span<const std::byte> data,
                    std::uint32_t value) noexcept;

/// CRC-32 of A followed by B, from the CRC of A, and the CRC and length of B.
std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_length) noexcept;

}  // namespace dcp_gds
