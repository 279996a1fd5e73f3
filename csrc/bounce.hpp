// Bounce buffer: the page-aligned scratch memory of one worker, mapped when it is first needed.
#pragma once

#include <cstddef>
#include <span>

namespace dcp_gds {

class BounceBuffer {
  public:
    explicit BounceBuffer(std::size_t length) noexcept : length_(length) {}
    ~BounceBuffer();
    BounceBuffer(const BounceBuffer&) = delete;
    BounceBuffer& operator=(const BounceBuffer&) = delete;

    /// Map the memory unless it is mapped already; false when there is none to be had.
    [[nodiscard]] bool prepare() noexcept;

    std::size_t length() const noexcept { return length_; }
    /// All of it. Only after `prepare` has succeeded.
    std::span<std::byte> memory() const noexcept { return {start_, length_}; }

  private:
    std::size_t length_;
    std::byte* start_ = nullptr;
};

}  // namespace dcp_gds
