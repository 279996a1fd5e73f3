// CRC-32 by carry-less multiplication on x86-64: PCLMULQDQ, and VPCLMULQDQ with 512-bit registers.
//
// A message is folded into a shorter one with the same CRC: several registers, each holding 16
// bytes, are carried forward over the stretch that all of them cover and added to the bytes there.
// What is left is a message of 16 bytes, whose CRC the tables give.
#include "crc32_kinds.hpp"
#include "crc32_polynomial.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

namespace dcp_gds {
namespace {

#define DCP_GDS_PCLMUL [[gnu::target("pclmul,sse2")]]
#define DCP_GDS_VPCLMUL [[gnu::target("vpclmulqdq,avx512f,pclmul,sse2")]]

DCP_GDS_PCLMUL inline __m128i load(const std::byte* from) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

DCP_GDS_PCLMUL inline __m128i factors_for(polynomial::FoldFactors factors) noexcept {
    return _mm_set_epi64x(static_cast<long long>(factors.last_half),
                          static_cast<long long>(factors.first_half));
}

DCP_GDS_PCLMUL inline __m128i fold(__m128i value, __m128i factors, __m128i next) noexcept {
    const __m128i first = _mm_clmulepi64_si128(value, factors, 0x00);
    const __m128i last = _mm_clmulepi64_si128(value, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, last), next);
}

/// Fold the remaining whole 16 bytes into `value`, then look up what is left.
DCP_GDS_PCLMUL inline std::uint32_t finish(__m128i value,
                                           std::span<const std::byte> rest) noexcept {
    constexpr polynomial::FoldFactors kFactors16 = polynomial::fold_factors(128);
    const __m128i factors = factors_for(kFactors16);
    for (; rest.size() >= 16; rest = rest.subspan(16)) {
        value = fold(value, factors, load(rest.data()));
    }
    alignas(16) std::byte left[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(left), value);
    return portable::update(portable::update(0, left), rest);
}

}  // namespace

namespace pclmul {

bool runs_here() noexcept {
    return __builtin_cpu_supports("pclmul") != 0;
}

// Eight registers: the multiplication takes up to 7 cycles and one can start in every cycle, so
// fewer leave the unit idle.
DCP_GDS_PCLMUL std::uint32_t update(std::uint32_t state, std::span<const std::byte> data) noexcept {
    constexpr std::size_t kLanes = 8;
    constexpr std::size_t kStep = kLanes * 16;
    constexpr polynomial::FoldFactors kFactorsStep = polynomial::fold_factors(kStep * 8);
    constexpr polynomial::FoldFactors kFactors16 = polynomial::fold_factors(128);
    if (data.size() < kStep) {
        return portable::update(state, data);
    }
    __m128i lanes[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = load(data.data() + lane * 16);
    }
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(state)));
    data = data.subspan(kStep);
    const __m128i factors = factors_for(kFactorsStep);
    for (; data.size() >= kStep; data = data.subspan(kStep)) {
        prefetch_ahead(data.data());
        prefetch_ahead(data.data() + kStep / 2);
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            lanes[lane] = fold(lanes[lane], factors, load(data.data() + lane * 16));
        }
    }
    __m128i value = lanes[0];
    for (std::size_t lane = 1; lane < kLanes; ++lane) {
        value = fold(value, factors_for(kFactors16), lanes[lane]);
    }
    return finish(value, data);
}

}  // namespace pclmul

namespace vpclmul {
namespace {

DCP_GDS_VPCLMUL inline __m512i wide_load(const std::byte* from) noexcept {
    return _mm512_loadu_si512(from);
}

DCP_GDS_VPCLMUL inline __m512i wide_factors_for(polynomial::FoldFactors factors) noexcept {
    const auto first = static_cast<long long>(factors.first_half);
    const auto last = static_cast<long long>(factors.last_half);
    return _mm512_set_epi64(last, first, last, first, last, first, last, first);
}

DCP_GDS_VPCLMUL inline __m512i wide_fold(__m512i value, __m512i factors, __m512i next) noexcept {
    constexpr int kXorOfThree = 0x96;
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, factors, 0x00),
                                     _mm512_clmulepi64_epi128(value, factors, 0x11), next,
                                     kXorOfThree);
}

}  // namespace

bool runs_here() noexcept {
    return pclmul::runs_here() && __builtin_cpu_supports("avx512f") != 0 &&
           __builtin_cpu_supports("vpclmulqdq") != 0;
}

DCP_GDS_VPCLMUL std::uint32_t update(std::uint32_t state,
                                     std::span<const std::byte> data) noexcept {
    constexpr std::size_t kLanes = 4;
    constexpr std::size_t kStep = kLanes * 64;
    constexpr polynomial::FoldFactors kFactorsStep = polynomial::fold_factors(kStep * 8);
    constexpr polynomial::FoldFactors kFactors64 = polynomial::fold_factors(512);
    if (data.size() < kStep) {
        return pclmul::update(state, data);
    }
    __m512i lanes[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = wide_load(data.data() + lane * 64);
    }
    lanes[0] = _mm512_xor_si512(lanes[0],
                                _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
    data = data.subspan(kStep);
    const __m512i factors = wide_factors_for(kFactorsStep);
    for (; data.size() >= kStep; data = data.subspan(kStep)) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            prefetch_ahead(data.data() + lane * 64);
            lanes[lane] = wide_fold(lanes[lane], factors, wide_load(data.data() + lane * 64));
        }
    }
    __m512i wide = lanes[0];
    const __m512i factors64 = wide_factors_for(kFactors64);
    for (std::size_t lane = 1; lane < kLanes; ++lane) {
        wide = wide_fold(wide, factors64, lanes[lane]);
    }
    for (; data.size() >= 64; data = data.subspan(64)) {
        wide = wide_fold(wide, factors64, wide_load(data.data()));
    }
    // Its four quarters are 64 bytes of message: start again from the first of them.
    alignas(64) std::byte left[64];
    _mm512_store_si512(left, wide);
    const std::uint32_t folded = finish(load(left), std::span<const std::byte>(left).subspan(16));
    return pclmul::update(folded, data);
}

}  // namespace vpclmul
}  // namespace dcp_gds

#else

namespace dcp_gds {

// Never called where runs_here() is false, and still a correct CRC.
bool pclmul::runs_here() noexcept {
    return false;
}
std::uint32_t pclmul::update(std::uint32_t state, std::span<const std::byte> data) noexcept {
    return portable::update(state, data);
}
bool vpclmul::runs_here() noexcept {
    return false;
}
std::uint32_t vpclmul::update(std::uint32_t state, std::span<const std::byte> data) noexcept {
    return portable::update(state, data);
}

}  // namespace dcp_gds

#endif
