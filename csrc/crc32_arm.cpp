// CRC-32 by carry-less multiplication on aarch64 (PMULL). The method is that of crc32_x86.cpp.
#include "crc32_kinds.hpp"
#include "crc32_polynomial.hpp"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace dcp_gds::pmull {
namespace {

#if defined(__clang__)
#define DCP_GDS_PMULL __attribute__((target("aes")))
#else
#define DCP_GDS_PMULL __attribute__((target("+crypto")))
#endif

DCP_GDS_PMULL inline uint64x2_t load(const std::byte* from) noexcept {
    return vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(from)));
}

DCP_GDS_PMULL inline uint64x2_t multiply(std::uint64_t a, std::uint64_t b) noexcept {
    return vreinterpretq_u64_p128(vmull_p64(a, b));
}

DCP_GDS_PMULL inline uint64x2_t fold(uint64x2_t value, polynomial::FoldFactors factors,
                                     uint64x2_t next) noexcept {
    const uint64x2_t first = multiply(vgetq_lane_u64(value, 0), factors.first_half);
    const uint64x2_t last = multiply(vgetq_lane_u64(value, 1), factors.last_half);
    return veorq_u64(veorq_u64(first, last), next);
}

}  // namespace

bool runs_here() noexcept {
    return (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0;
}

DCP_GDS_PMULL std::uint32_t update(std::uint32_t state, std::span<const std::byte> data) noexcept {
    constexpr std::size_t kLanes = 8;
    constexpr std::size_t kStep = kLanes * 16;
    constexpr polynomial::FoldFactors kFactorsStep = polynomial::fold_factors(kStep * 8);
    constexpr polynomial::FoldFactors kFactors16 = polynomial::fold_factors(128);
    if (data.size() < kStep) {
        return portable::update(state, data);
    }
    uint64x2_t lanes[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = load(data.data() + lane * 16);
    }
    lanes[0] = veorq_u64(lanes[0], vcombine_u64(vcreate_u64(state), vcreate_u64(0)));
    data = data.subspan(kStep);
    for (; data.size() >= kStep; data = data.subspan(kStep)) {
        prefetch_ahead(data.data());
        prefetch_ahead(data.data() + kStep / 2);
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            lanes[lane] = fold(lanes[lane], kFactorsStep, load(data.data() + lane * 16));
        }
    }
    uint64x2_t value = lanes[0];
    for (std::size_t lane = 1; lane < kLanes; ++lane) {
        value = fold(value, kFactors16, lanes[lane]);
    }
    for (; data.size() >= 16; data = data.subspan(16)) {
        value = fold(value, kFactors16, load(data.data()));
    }
    alignas(16) std::byte left[16];
    vst1q_u8(reinterpret_cast<std::uint8_t*>(left), vreinterpretq_u8_u64(value));
    return portable::update(portable::update(0, left), data);
}

}  // namespace dcp_gds::pmull

#else

namespace dcp_gds {

// Never called where runs_here() is false, and still a correct CRC.
bool pmull::runs_here() noexcept {
    return false;
}
std::uint32_t pmull::update(std::uint32_t state, std::span<const std::byte> data) noexcept {
    return portable::update(state, data);
}

}  // namespace dcp_gds

#endif
