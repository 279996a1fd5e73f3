#include "file.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>

namespace dcp_gds {
namespace {

// The kernel's struct statx, 256 bytes, by word. Older headers, such as those that portable wheels
// are built with, lack the two direct I/O fields, while the kernel that runs the wheel has them.
constexpr std::size_t kStatxWords = 64;
constexpr std::size_t kMaskWord = 0;
constexpr std::size_t kDioMemoryWord = 152 / 4;
constexpr std::size_t kDioOffsetWord = 156 / 4;
constexpr std::uint32_t kStatxDioAlign = 0x2000;

// A signal that comes again and again (a profiler's timer) must not keep an allocation from ever
// ending; this many in a row are no coincidence.
constexpr int kInterruptionsMax = 100;

[[noreturn]] void throw_errno(int error, const char* what) {
    throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

std::optional<DioAlignment> dio_alignment(int fd) {
    std::array<std::uint32_t, kStatxWords> facts{};
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, kStatxDioAlign, facts.data()) != 0) {
        if (errno == ENOSYS) {
            return std::nullopt;
        }
        throw_errno(errno, "statx");
    }
    const DioAlignment found{.memory = facts[kDioMemoryWord], .offset = facts[kDioOffsetWord]};
    // The bit is set and both are 0 where this kind of file can do direct I/O, but this one cannot.
    if ((facts[kMaskWord] & kStatxDioAlign) == 0 || (found.memory == 0 && found.offset == 0)) {
        return std::nullopt;
    }
    return found;
}

bool preallocate(int fd, std::int64_t length) {
    for (int interruptions = 0;; ++interruptions) {
        if (fallocate(fd, 0, 0, length) == 0) {
            return true;
        }
        if (errno == EOPNOTSUPP || errno == ENOSYS) {
            return false;
        }
        if (errno != EINTR || interruptions == kInterruptionsMax) {
            throw_errno(errno, "fallocate");
        }
    }
}

}  // namespace dcp_gds
