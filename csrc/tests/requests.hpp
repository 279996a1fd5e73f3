// Requests: transfers of a test's memory, carried out with a small bounce buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "check.hpp"
#include "transfer.hpp"

namespace dcp_gds {

using Lengths = std::initializer_list<std::uint64_t>;

constexpr std::size_t kBounceBytes = 16384;
constexpr std::byte kUntouched{0xEE};

inline std::vector<std::byte> random_bytes(std::size_t length) {
    std::mt19937 random(20240607);
    std::vector<std::byte> data(length);
    for (std::byte& byte : data) {
        byte = static_cast<std::byte>(random());
    }
    return data;
}

/// Memory that starts at a page, so that a test can choose an address within one.
class Pages {
  public:
    explicit Pages(std::size_t length) : memory_(length + 4096, kUntouched) {}
    std::byte* start() {
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
        return memory_.data() + (4096 - address % 4096) % 4096;
    }

  private:
    std::vector<std::byte> memory_;
};

inline Completion run(Request request, FileCalls& calls) {
    BounceBuffer bounce(kBounceBytes);
    const Completion completion = carry_out(request, bounce, calls);
    CHECK(completion.ticket == request.ticket);
    return completion;
}

inline Request reading(std::byte* memory, std::uint64_t length, std::uint64_t offset,
                       std::uint64_t alignment) {
    return {.ticket = 7,
            .direction = Direction::kRead,
            .fd = -1,
            .memory = memory,
            .length = length,
            .offset = offset,
            .alignment = alignment,
            .checksum = true};
}

inline Request writing(std::byte* memory, std::uint64_t length, std::uint64_t offset,
                       std::uint64_t alignment) {
    Request request = reading(memory, length, offset, alignment);
    request.direction = Direction::kWrite;
    return request;
}

}  // namespace dcp_gds
