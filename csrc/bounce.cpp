#include "bounce.hpp"

#include <sys/mman.h>

namespace dcp_gds {

BounceBuffer::~BounceBuffer() {
    if (start_ != nullptr) {
        munmap(start_, length_);
    }
}

bool BounceBuffer::prepare() noexcept {
    if (start_ != nullptr) {
        return true;
    }
    void* mapped =
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        return false;
    }
    // A fork while the drive writes into these pages could leave the data in the child's copy. A
    // kernel without this advice is no reason to fail.
    madvise(mapped, length_, MADV_DONTFORK);
    start_ = static_cast<std::byte*>(mapped);
    return true;
}

}  // namespace dcp_gds
