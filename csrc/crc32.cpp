#include "crc32.hpp"

#include <array>
#include <bit>

#include "crc32_kinds.hpp"
#include "crc32_polynomial.hpp"

namespace dcp_gds {
namespace {

struct Available {
    std::array<Crc32Kind, 4> kinds{};
    std::size_t count = 0;

    void add(Crc32Kind kind) noexcept { kinds[count++] = kind; }
};

Available find_available() noexcept {
    Available available;
    if (vpclmul::runs_here()) {
        available.add({"vpclmul", vpclmul::update});
    }
    if (pclmul::runs_here()) {
        available.add({"pclmul", pclmul::update});
    }
    if (pmull::runs_here()) {
        available.add({"pmull", pmull::update});
    }
    available.add({"portable", portable::update});
    return available;
}

/// powers[k] is x to the power of 8 * 2^k: the shift by 2^k bytes.
constexpr std::array<std::uint32_t, 64> make_byte_powers() noexcept {
    std::array<std::uint32_t, 64> powers{};
    powers[0] = polynomial::x_to_the(8);
    for (std::size_t k = 1; k < powers.size(); ++k) {
        powers[k] = polynomial::multiply(powers[k - 1], powers[k - 1]);
    }
    return powers;
}

constexpr std::array<std::uint32_t, 64> kBytePowers = make_byte_powers();

}  // namespace

std::span<const Crc32Kind> crc32_kinds() noexcept {
    static const Available available = find_available();
    return std::span(available.kinds).first(available.count);
}

std::uint32_t crc32(std::span<const std::byte> data, std::uint32_t value) noexcept {
    return crc32(crc32_kinds().front(), data, value);
}

std::uint32_t crc32(const Crc32Kind& kind, std::span<const std::byte> data,
                    std::uint32_t value) noexcept {
    return ~kind.update(~value, data);
}

// Appending n bytes multiplies what came before by x^(8n). The complements at both ends cancel:
// they add the same term to the CRC of A that is carried forward and to the CRC of B.
std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_length) noexcept {
    for (; second_length != 0; second_length &= second_length - 1) {
        const auto lowest = static_cast<std::size_t>(std::countr_zero(second_length));
        first = polynomial::multiply(kBytePowers[lowest], first);
    }
    return first ^ second;
}

}  // namespace dcp_gds
