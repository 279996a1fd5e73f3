// Transfer: one request between memory and a file, carried out to its end by the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bounce.hpp"

namespace dcp_gds {

enum class Direction { kRead, kWrite };

/// `length` bytes between `memory` and the file at `offset`. Whoever submits keeps the memory and
/// the descriptor until the completion has been reaped.
struct Request {
    std::uint64_t ticket;
    Direction direction;
    int fd;
    std::byte* memory;
    std::uint64_t length;
    std::uint64_t offset;
    // 1: the file takes any offset and length. Else a power of two, at most the bounce buffer's
    // length: the file is open with O_DIRECT, and memory, offset and length of every call to the
    // kernel are multiples of it.
    std::uint64_t alignment;
    bool checksum;
};

/// What came of a request. `done` < `length` with `error` 0 is the end of the file.
struct Completion {
    std::uint64_t ticket = 0;
    std::uint64_t done = 0;
    // A positive errno, 0 if there is none.
    int error = 0;
    // Of the `done` bytes, if it was asked for.
    std::uint32_t crc32 = 0;
    // Bytes that the kernel was asked for, rounding to whole blocks included, each counted once.
    std::uint64_t moved = 0;
    // Short transfers, and EINTR, EAGAIN and EIO after which it was tried again.
    std::uint32_t retries = 0;
};

/// What a transfer asks of the kernel. The tests derive from it to inject faults.
class FileCalls {
  public:
    FileCalls() = default;
    virtual ~FileCalls() = default;
    FileCalls(const FileCalls&) = delete;
    FileCalls& operator=(const FileCalls&) = delete;

    /// Bytes moved, or a negative errno.
    virtual std::int64_t read(int fd, std::span<std::byte> memory, std::uint64_t offset) noexcept;
    virtual std::int64_t write(int fd, std::span<const std::byte> memory,
                               std::uint64_t offset) noexcept;
};

Completion carry_out(const Request& request, BounceBuffer& bounce, FileCalls& calls) noexcept;

}  // namespace dcp_gds
