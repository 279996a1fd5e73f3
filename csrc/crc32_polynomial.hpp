// Arithmetic modulo the CRC-32 polynomial, in the reflected representation: bit 31 is x^0, bit 0 is
// x^31. Everything is constexpr, so that tables and folding constants are derived, not copied.
#pragma once

#include <cstdint>

namespace dcp_gds::polynomial {

// x^32 + x^26 + x^23 + x^22 + x^16 + x^12 + x^11 + x^10 + x^8 + x^7 + x^5 + x^4 + x^2 + x + 1,
// reflected, the x^32 implied.
inline constexpr std::uint32_t kCrc32 = 0xEDB88320;
inline constexpr std::uint32_t kOne = 0x80000000;

/// a times x.
constexpr std::uint32_t times_x(std::uint32_t a) noexcept {
    return (a >> 1) ^ ((a & 1) != 0 ? kCrc32 : 0);
}

/// a times b.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) noexcept {
    std::uint32_t product = 0;
    for (std::uint32_t term = kOne; term != 0; term >>= 1) {
        if ((a & term) != 0) {
            product ^= b;
        }
        b = times_x(b);
    }
    return product;
}

/// x to the power of `exponent`.
constexpr std::uint32_t x_to_the(unsigned exponent) noexcept {
    std::uint32_t power = kOne;
    for (unsigned step = 0; step < exponent; ++step) {
        power = times_x(power);
    }
    return power;
}

/// The two factors that carry a 16-byte register forward over `bits` bits of message.
///
/// The register's first 8 bytes (its low half on a little-endian CPU) stand 64 bits higher than its
/// last 8. A carry-less product of two reflected 64-bit numbers comes out one bit low, that is,
/// times x, hence the exponents below are one less than the distance. A factor has degree below 32
/// and so lies in the upper half of its 64 bits.
struct FoldFactors {
    std::uint64_t first_half;
    std::uint64_t last_half;
};

constexpr FoldFactors fold_factors(unsigned bits) noexcept {
    return {.first_half = std::uint64_t{x_to_the(bits + 64 - 1)} << 32,
            .last_half = std::uint64_t{x_to_the(bits - 1)} << 32};
}

}  // namespace dcp_gds::polynomial
