// Memory file: a file in memory that keeps O_DIRECT's rules and fails where a test asks it to.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "transfer.hpp"

namespace dcp_gds {

class MemoryFile : public FileCalls {
  public:
    MemoryFile(std::vector<std::byte> start, std::uint64_t alignment)
        : content(std::move(start)), alignment_(alignment) {}

    std::int64_t read(int /*fd*/, std::span<std::byte> memory,
                      std::uint64_t offset) noexcept override {
        if (const std::int64_t refused = refuse(memory, offset); refused != 0) {
            return refused;
        }
        const std::uint64_t left = offset < content.size() ? content.size() - offset : 0;
        const std::uint64_t length = shortened(std::min<std::uint64_t>(memory.size(), left));
        if (length != 0) {
            std::memcpy(memory.data(), content.data() + offset, length);
        }
        return static_cast<std::int64_t>(length);
    }

    std::int64_t write(int /*fd*/, std::span<const std::byte> memory,
                       std::uint64_t offset) noexcept override {
        if (const std::int64_t refused = refuse(memory, offset); refused != 0) {
            return refused;
        }
        const std::uint64_t length = shortened(memory.size());
        content.resize(std::max<std::uint64_t>(content.size(), offset + length));
        std::copy_n(memory.begin(), length, content.begin() + static_cast<std::ptrdiff_t>(offset));
        return static_cast<std::int64_t>(length);
    }

    std::vector<std::byte> content;
    /// Errnos that the next calls fail with, one each; 0 lets one succeed.
    std::deque<int> errors;
    /// Most bytes that one call moves.
    std::uint64_t call_bytes_max = UINT64_MAX;
    unsigned calls = 0;

  private:
    std::int64_t refuse(std::span<const std::byte> memory, std::uint64_t offset) noexcept {
        ++calls;
        if (!errors.empty()) {
            const int error = errors.front();
            errors.pop_front();
            if (error != 0) {
                return -error;
            }
        }
        const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
        return (address | memory.size() | offset) % alignment_ == 0 ? 0 : -EINVAL;
    }

    std::uint64_t shortened(std::uint64_t length) const noexcept {
        return std::min(length, call_bytes_max);
    }

    std::uint64_t alignment_;
};

}  // namespace dcp_gds
