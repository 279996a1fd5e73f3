// Facts and room of one open file: what direct I/O needs, and preallocation.
#pragma once

#include <cstdint>
#include <optional>

namespace dcp_gds {

struct DioAlignment {
    std::uint32_t memory;
    std::uint32_t offset;
};

/// What direct I/O on this file needs; nothing where the kernel does not say that it honours direct
/// I/O there. Throws std::system_error.
std::optional<DioAlignment> dio_alignment(int fd);

/// Allocate [0, length) of the file and extend it to that length; false where the filesystem
/// cannot. Throws std::system_error. A full filesystem may keep what it had already allocated.
bool preallocate(int fd, std::int64_t length);

}  // namespace dcp_gds
