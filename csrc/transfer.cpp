#include "transfer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "crc32.hpp"

namespace dcp_gds {
namespace {

// The kernel moves at most 0x7ffff000 bytes in one call; 1 GiB is below it and a multiple of every
// alignment.
constexpr std::uint64_t kPieceBytesMax = std::uint64_t{1} << 30;

// A congruent read of at most this much goes through the bounce buffer in one call: copying 64 KiB
// takes some 10 us, and the up to two calls for its edge blocks take longer than that.
constexpr std::uint64_t kBounceWholeMax = std::uint64_t{64} << 10;

// Calls in a row that moved nothing (EINTR, EAGAIN, a write of 0 bytes) before giving up. With the
// pause that grows by 1 ms each time, EAGAIN is given 2 seconds to pass.
constexpr unsigned kStallsMax = 64;

// A read or write that fails with EIO may go well the next time: a link that was reset, a server
// that came back. The pause grows by 5 ms each time. The drive and the kernel have tried for
// seconds before they say EIO, so more than a few would only put off the error. Nothing else is
// tried again after EIO, fdatasync least of all: the kernel tells a failed write-back once, then
// takes the pages for clean, and a second call would succeed without the data.
constexpr unsigned kIoErrorRetriesMax = 3;
constexpr std::chrono::milliseconds kIoErrorPause{5};

constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t alignment) noexcept {
    return value & ~(alignment - 1);
}

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t alignment) noexcept {
    return round_down(value + alignment - 1, alignment);
}

/// The state of one transfer. Its steps each move the next bytes of the request and return whether
/// to go on.
class Transfer {
  public:
    Transfer(const Request& request, BounceBuffer& bounce, FileCalls& calls) noexcept
        : request_(request), bounce_(bounce), calls_(calls) {
        result_.ticket = request.ticket;
    }

    Completion run() noexcept {
        if (!is_possible()) {
            result_.error = EINVAL;
        } else if (request_.direction == Direction::kWrite) {
            write();
        } else {
            read();
        }
        return result_;
    }

  private:
    // Rounding a write out to whole blocks would race with whoever writes the block's other bytes.
    bool is_possible() const noexcept {
        const auto offset_max = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
        if (request_.offset > offset_max - request_.alignment ||
            request_.length > offset_max - request_.alignment - request_.offset) {
            return false;
        }
        return request_.direction == Direction::kRead ||
               (is_aligned(request_.offset) && is_aligned(request_.length));
    }

    bool is_aligned(std::uint64_t value) const noexcept {
        return round_down(value, request_.alignment) == value;
    }

    std::uint64_t address() const noexcept {
        return reinterpret_cast<std::uintptr_t>(request_.memory);
    }

    void write() noexcept {
        if (is_aligned(address())) {
            move_straight(request_.length);
        } else {
            write_bounced();
        }
    }

    // Example: alignment 4096, offset 5000, length 9000. The body is [8192, 12288), straight into
    // memory; the head [5000, 8192) and the tail [12288, 14000) go through the bounce buffer.
    void read() noexcept {
        const std::uint64_t end = request_.offset + request_.length;
        const std::uint64_t body_start = round_up(request_.offset, request_.alignment);
        const std::uint64_t body_end = round_down(end, request_.alignment);
        const bool has_edges = body_start != request_.offset || body_end != end;
        // Unsigned wrap-around is harmless: the alignment divides 2^64.
        const bool congruent = is_aligned(address() - request_.offset);
        const bool small = has_edges && request_.length <= kBounceWholeMax;
        if (!congruent || small || body_start >= body_end) {
            read_bounced(request_.length);
            return;
        }
        if (read_bounced(body_start - request_.offset) && move_straight(body_end - body_start)) {
            read_bounced(end - body_end);
        }
    }

    bool move_straight(std::uint64_t length) noexcept {
        const std::span memory(request_.memory + result_.done, length);
        if (request_.direction == Direction::kWrite) {
            add_to_crc(memory);
        }
        const std::uint64_t moved = move_all(memory, position(), length);
        if (request_.direction == Direction::kRead) {
            add_to_crc(memory.first(moved));
        }
        result_.done += moved;
        return moved == length;
    }

    // The CRC is taken from the bounce buffer: there the bytes are in cache, and they are the ones
    // that reach the file even if the source changes meanwhile.
    bool write_bounced() noexcept {
        if (!prepare_bounce()) {
            return false;
        }
        while (result_.done < request_.length) {
            const std::uint64_t length =
                std::min<std::uint64_t>(request_.length - result_.done, bounce_.length());
            const std::span piece = bounce_.memory().first(length);
            std::memcpy(piece.data(), request_.memory + result_.done, length);
            add_to_crc(piece);
            const std::uint64_t moved = move_all(piece, position(), length);
            result_.done += moved;
            if (moved < length) {
                return false;
            }
        }
        return true;
    }

    bool read_bounced(std::uint64_t length) noexcept {
        if (length != 0 && !prepare_bounce()) {
            return false;
        }
        while (length != 0) {
            const std::uint64_t start = round_down(position(), request_.alignment);
            const std::uint64_t lead = position() - start;
            const std::uint64_t wanted = std::min<std::uint64_t>(length, bounce_.length() - lead);
            const std::span blocks =
                bounce_.memory().first(round_up(lead + wanted, request_.alignment));
            // The last block may reach beyond the end of the file: only the wanted bytes must come.
            const std::uint64_t moved = move_all(blocks, start, lead + wanted);
            const std::span piece =
                blocks.subspan(lead, std::min(wanted, std::max(moved, lead) - lead));
            add_to_crc(piece);
            std::memcpy(request_.memory + result_.done, piece.data(), piece.size());
            result_.done += piece.size();
            length -= piece.size();
            if (piece.size() < wanted) {
                return false;
            }
        }
        return true;
    }

    std::uint64_t position() const noexcept { return request_.offset + result_.done; }

    void add_to_crc(std::span<const std::byte> piece) noexcept {
        if (request_.checksum) {
            result_.crc32 = crc32(piece, result_.crc32);
        }
    }

    bool prepare_bounce() noexcept {
        if (bounce_.prepare()) {
            return true;
        }
        result_.error = ENOMEM;
        return false;
    }

    /// Move all of `memory`, or until `needed` bytes of it have been moved; returns how many were.
    /// Fewer than that: `error` is set, or a read has met the end of the file.
    std::uint64_t move_all(std::span<std::byte> memory, std::uint64_t offset,
                           std::uint64_t needed) noexcept {
        result_.moved += memory.size();
        std::uint64_t done = 0;
        unsigned stalls = 0;
        while (done < needed) {
            // A short transfer may end inside a block, and direct I/O cannot start there.
            const std::uint64_t resume = round_down(done, request_.alignment);
            const std::span piece = memory.subspan(
                resume, std::min<std::uint64_t>(memory.size() - resume, kPieceBytesMax));
            const std::int64_t moved = call(piece, offset + resume);
            const std::uint64_t reached =
                resume + static_cast<std::uint64_t>(std::max<std::int64_t>(moved, 0));
            if (reached > done) {
                done = reached;
                stalls = 0;
                if (done < needed && reached - resume < piece.size()) {
                    ++result_.retries;
                }
                continue;
            }
            if (moved >= 0 && request_.direction == Direction::kRead) {
                break;  // The end of the file.
            }
            if (!may_pass(moved, ++stalls)) {
                result_.error = moved < 0 ? static_cast<int>(-moved) : EIO;
                break;
            }
            ++result_.retries;
        }
        return done;
    }

    /// Whether to try again after a call that moved nothing, the `stalls`th in a row; pauses first
    /// where time may help.
    bool may_pass(std::int64_t moved, unsigned stalls) noexcept {
        if (moved == -EIO) {
            if (io_errors_ == kIoErrorRetriesMax) {
                return false;
            }
            ++io_errors_;
            std::this_thread::sleep_for(kIoErrorPause * io_errors_);
            return true;
        }
        if ((moved < 0 && moved != -EINTR && moved != -EAGAIN) || stalls > kStallsMax) {
            return false;
        }
        if (moved == -EAGAIN) {
            std::this_thread::sleep_for(std::chrono::milliseconds(stalls));
        }
        return true;
    }

    std::int64_t call(std::span<std::byte> piece, std::uint64_t offset) noexcept {
        return request_.direction == Direction::kWrite ? calls_.write(request_.fd, piece, offset)
                                                       : calls_.read(request_.fd, piece, offset);
    }

    const Request& request_;
    BounceBuffer& bounce_;
    FileCalls& calls_;
    Completion result_;
    // Of the whole transfer: a drive that fails at every other call is not one to go on with.
    unsigned io_errors_ = 0;
};

}  // namespace

std::int64_t FileCalls::read(int fd, std::span<std::byte> memory, std::uint64_t offset) noexcept {
    const ssize_t moved = pread(fd, memory.data(), memory.size(), static_cast<off_t>(offset));
    return moved < 0 ? -std::int64_t{errno} : moved;
}

std::int64_t FileCalls::write(int fd, std::span<const std::byte> memory,
                              std::uint64_t offset) noexcept {
    const ssize_t moved = pwrite(fd, memory.data(), memory.size(), static_cast<off_t>(offset));
    return moved < 0 ? -std::int64_t{errno} : moved;
}

Completion carry_out(const Request& request, BounceBuffer& bounce, FileCalls& calls) noexcept {
    return Transfer(request, bounce, calls).run();
}

}  // namespace dcp_gds
