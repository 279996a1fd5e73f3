// CRC-32 by 16 lookup tables, on any CPU: 16 bytes a step, each looked up on its own ("slicing").
#include <array>
#include <bit>
#include <cstring>

#include "crc32_kinds.hpp"
#include "crc32_polynomial.hpp"

namespace dcp_gds::portable {
namespace {

constexpr std::size_t kSlices = 16;
using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

/// tables[s][b]: what byte b adds to the register when s more bytes follow it.
constexpr Tables make_tables() noexcept {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t state = byte;
        for (int bit = 0; bit < 8; ++bit) {
            state = polynomial::times_x(state);
        }
        tables[0][byte] = state;
    }
    for (std::size_t slice = 1; slice < kSlices; ++slice) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[slice - 1][byte];
            tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xFF];
        }
    }
    return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t load_little_endian(const std::byte* from) noexcept {
    std::uint32_t word;
    std::memcpy(&word, from, sizeof word);
    if constexpr (std::endian::native == std::endian::big) {
        word = __builtin_bswap32(word);
    }
    return word;
}

/// What the 4 bytes of `word` add when `following` bytes come after them.
std::uint32_t look_up(std::uint32_t word, std::size_t following) noexcept {
    return kTables[following + 3][word & 0xFF] ^ kTables[following + 2][(word >> 8) & 0xFF] ^
           kTables[following + 1][(word >> 16) & 0xFF] ^ kTables[following][word >> 24];
}

}  // namespace

std::uint32_t update(std::uint32_t state, std::span<const std::byte> data) noexcept {
    for (; data.size() >= kSlices; data = data.subspan(kSlices)) {
        const std::byte* from = data.data();
        state = look_up(load_little_endian(from) ^ state, 12) ^
                look_up(load_little_endian(from + 4), 8) ^
                look_up(load_little_endian(from + 8), 4) ^
                look_up(load_little_endian(from + 12), 0);
    }
    for (const std::byte byte : data) {
        state = (state >> 8) ^ kTables[0][(state ^ std::to_integer<std::uint32_t>(byte)) & 0xFF];
    }
    return state;
}

}  // namespace dcp_gds::portable
