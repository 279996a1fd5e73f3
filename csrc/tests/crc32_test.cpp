// Every CRC-32 kind of this CPU gives what a bit by bit division gives, for all lengths around the
// steps of each kind, at unaligned addresses, continued and combined.
#include "crc32.hpp"

#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "check.hpp"

namespace {

using namespace dcp_gds;

std::uint32_t reference(std::span<const std::byte> data, std::uint32_t value) {
    value = ~value;
    for (const std::byte byte : data) {
        value ^= std::to_integer<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) {
            value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320U : 0U);
        }
    }
    return ~value;
}

std::vector<std::byte> random_bytes(std::size_t length) {
    std::mt19937 random(20240607);
    std::vector<std::byte> data(length);
    for (std::byte& byte : data) {
        byte = static_cast<std::byte>(random());
    }
    return data;
}

void gives_the_check_value() {
    const std::string_view text = "123456789";
    for (const Crc32Kind& kind : crc32_kinds()) {
        CHECK(crc32(kind, std::as_bytes(std::span(text)), 0) == 0xCBF43926U);
    }
}

void equals_the_reference() {
    // 1100 is beyond four steps of the widest kind (256 bytes) and all of its shorter ends.
    const std::vector<std::byte> data = random_bytes(1200);
    for (std::size_t start = 0; start < 64; start += 9) {
        for (std::size_t length = 0; length <= 1100; ++length) {
            const std::span part = std::span(data).subspan(start, length);
            const auto value = static_cast<std::uint32_t>(length * 2654435761U);
            const std::uint32_t expected = reference(part, value);
            for (const Crc32Kind& kind : crc32_kinds()) {
                CHECK(crc32(kind, part, value) == expected);
            }
            CHECK(crc32(part, value) == expected);
        }
    }
}

void continues_and_combines() {
    const std::vector<std::byte> data = random_bytes(100'000);
    const std::uint32_t whole = reference(data, 0);
    for (std::size_t cut = 0; cut <= data.size(); cut += 4999) {
        const std::span first = std::span(data).first(cut);
        const std::span second = std::span(data).subspan(cut);
        CHECK(crc32(second, crc32(first, 0)) == whole);
        CHECK(crc32_combine(crc32(first, 0), crc32(second, 0), second.size()) == whole);
    }
}

// Lengths that no test can make: a part of 2^63 bytes equals two of 2^62.
void combines_any_length() {
    const std::uint64_t half = std::uint64_t{1} << 62;
    const std::uint32_t once = crc32_combine(0x12345678, 0, half);
    CHECK(crc32_combine(once, 0, half) == crc32_combine(0x12345678, 0, 2 * half));
    CHECK(crc32_combine(0x12345678, 0x9ABCDEF0, 0) == (0x12345678U ^ 0x9ABCDEF0U));
}

void ends_with_portable() {
    CHECK(crc32_kinds().back().name == "portable");
}

}  // namespace

int main() {
    gives_the_check_value();
    equals_the_reference();
    continues_and_combines();
    combines_any_length();
    ends_with_portable();
}
