// Transfers against a file in memory that keeps O_DIRECT's rules: a grid of offset, length, address
// and alignment, then each bound.
#include "transfer.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "check.hpp"
#include "crc32.hpp"
#include "memory_file.hpp"
#include "requests.hpp"

namespace {

using namespace dcp_gds;

const std::array<std::uint64_t, 3> kAlignments{1, 512, 4096};

void check_read(MemoryFile& file, std::size_t shift, std::uint64_t length, std::uint64_t offset,
                std::uint64_t alignment) {
    constexpr std::size_t kGuard = 64;
    Pages pages(shift + length + 2 * kGuard);
    std::byte* const memory = pages.start() + kGuard + shift;
    const Completion completion = run(reading(memory, length, offset, alignment), file);
    const std::span expected = std::span(file.content).subspan(offset, length);
    CHECK(completion.error == 0 && completion.done == length);
    CHECK(std::ranges::equal(std::span(memory, length), expected));
    CHECK(completion.crc32 == crc32(expected, 0));
    CHECK(memory[-1] == kUntouched && memory[length] == kUntouched);
    CHECK(completion.moved >= length && completion.moved <= length + 2 * alignment);
    // A last block that the end of the file cuts short is no short transfer.
    CHECK(completion.retries == 0 || file.call_bytes_max != UINT64_MAX);
}

// The file ends in the middle of a block, and the longest reads reach exactly to its end.
void reads_any_extent() {
    constexpr std::uint64_t kFileLength = 220'001;
    for (const std::uint64_t alignment : kAlignments) {
        MemoryFile file(random_bytes(kFileLength), alignment);
        for (const std::uint64_t call_bytes_max : {UINT64_MAX, std::uint64_t{5000}}) {
            file.call_bytes_max = call_bytes_max;
            for (const std::uint64_t offset : Lengths{0, 1, 511, 512, 4095, 4096, 4097, 70'000}) {
                for (const std::uint64_t length :
                     Lengths{0, 1, 511, 512, 513, 4096, 8191, 16384, 16385, 65535, 65536, 65537,
                             100'000, 150'001}) {
                    for (const std::size_t shift : Lengths{0, 1, 63, 448, 512, 1000, 4032, 4033}) {
                        check_read(file, shift, length, offset, alignment);
                    }
                }
            }
        }
    }
}

void check_write(std::size_t shift, std::uint64_t length, std::uint64_t offset,
                 std::uint64_t alignment, std::uint64_t call_bytes_max) {
    const std::vector<std::byte> source = random_bytes(length);
    Pages pages(shift + length);
    std::byte* const memory = pages.start() + shift;
    std::ranges::copy(source, memory);
    MemoryFile file(std::vector<std::byte>(offset + length + 4096, kUntouched), alignment);
    file.call_bytes_max = call_bytes_max;
    const Completion completion = run(writing(memory, length, offset, alignment), file);
    CHECK(completion.error == 0 && completion.done == length && completion.moved == length);
    CHECK(std::ranges::equal(std::span(file.content).subspan(offset, length), source));
    CHECK(completion.crc32 == crc32(source, 0));
    CHECK(offset == 0 || file.content[offset - 1] == kUntouched);
    CHECK(file.content[offset + length] == kUntouched);
    CHECK((completion.retries != 0) == (call_bytes_max < length));
}

void writes_any_address() {
    for (const std::uint64_t alignment : kAlignments) {
        for (const std::uint64_t blocks : Lengths{0, 1, 2, 4, 5, 9, 40}) {
            for (const std::size_t shift : Lengths{0, 1, 64, 511, 512, 4032}) {
                for (const std::uint64_t call_bytes_max : {UINT64_MAX, std::uint64_t{5000}}) {
                    check_write(shift, blocks * alignment, 3 * alignment, alignment,
                                call_bytes_max);
                }
            }
        }
    }
}

void goes_straight_where_it_can() {
    MemoryFile file(random_bytes(1 << 20), 4096);
    Pages pages(1 << 20);
    CHECK(run(reading(pages.start(), 524'288, 4096, 4096), file).moved == 524'288);
    CHECK(file.calls == 1);
    // Head, body and tail.
    CHECK(run(reading(pages.start() + 100, 524'288, 4196, 4096), file).moved == 524'288 + 4096);
    CHECK(file.calls == 1 + 3);
    // A short one is cheaper in one bounced call.
    CHECK(run(reading(pages.start() + 100, 12'000, 4196, 4096), file).moved == 12'288);
    CHECK(file.calls == 4 + 1);
    CHECK(run(writing(pages.start(), 524'288, 4096, 4096), file).error == 0);
    CHECK(file.calls == 5 + 1);
}

void refuses_misaligned_writes() {
    MemoryFile file({}, 4096);
    Pages pages(8192);
    CHECK(run(writing(pages.start(), 4096, 512, 4096), file).error == EINVAL);
    CHECK(run(writing(pages.start(), 4095, 4096, 4096), file).error == EINVAL);
    CHECK(file.calls == 0);
}

void refuses_offsets_beyond_any_file() {
    MemoryFile file({}, 1);
    Pages pages(8192);
    const std::uint64_t last = INT64_MAX;
    CHECK(run(reading(pages.start(), 1, last, 1), file).error == EINVAL);
    CHECK(run(reading(pages.start(), 1, UINT64_MAX - 4095, 4096), file).error == EINVAL);
    CHECK(run(reading(pages.start(), UINT64_MAX - 4095, 8192, 4096), file).error == EINVAL);
    CHECK(run(reading(pages.start(), INT64_MAX - 8192, 8192, 4096), file).error == EINVAL);
    CHECK(file.calls == 0);
}

void stops_at_the_end_of_the_file() {
    for (const std::uint64_t alignment : kAlignments) {
        for (const std::size_t shift : Lengths{0, 8}) {
            for (const std::uint64_t file_length : Lengths{0, 100, 5000, 8192, 100'000}) {
                MemoryFile file(random_bytes(file_length), alignment);
                Pages pages(1 << 18);
                const std::uint64_t offset = std::min<std::uint64_t>(file_length, 48);
                const Completion completion =
                    run(reading(pages.start() + shift, 120'000, offset, alignment), file);
                CHECK(completion.error == 0);
                CHECK(completion.done == file_length - offset);
                CHECK(completion.crc32 == crc32(std::span(file.content).subspan(offset), 0));
            }
        }
    }
}

void reads_nothing_beyond_the_end() {
    MemoryFile file(random_bytes(100), 4096);
    Pages pages(8192);
    const Completion completion = run(reading(pages.start(), 4096, 1000, 4096), file);
    CHECK(completion.error == 0 && completion.done == 0 && completion.crc32 == 0);
    CHECK(pages.start()[0] == kUntouched);
}

// Both edges lie in one block, which is longer than what counts as a short read.
void reads_within_a_long_block() {
    constexpr std::uint64_t kBlock = 1 << 18;
    MemoryFile file(random_bytes(2 * kBlock), 4096);
    Pages pages(kBlock);
    BounceBuffer bounce(kBlock);
    // An address that is congruent with the offset.
    const auto start = reinterpret_cast<std::uintptr_t>(pages.start());
    const std::uint64_t offset = kBlock + start % kBlock + 1;
    const std::uint64_t length = kBlock - start % kBlock - 1;
    const Request request =
        reading(pages.start() + 1, std::min(length, kBlock / 2), offset, kBlock);
    const Completion completion = carry_out(request, bounce, file);
    CHECK(completion.error == 0 && completion.done == request.length && file.calls == 1);
    CHECK(std::ranges::equal(std::span(request.memory, request.length),
                             std::span(file.content).subspan(offset, request.length)));
}

void reports_the_lack_of_a_bounce_buffer() {
    MemoryFile file(random_bytes(8192), 4096);
    Pages pages(8192);
    BounceBuffer too_long(std::size_t{1} << 62);
    CHECK(carry_out(writing(pages.start() + 8, 4096, 0, 4096), too_long, file).error == ENOMEM);
    CHECK(carry_out(reading(pages.start(), 100, 1, 4096), too_long, file).error == ENOMEM);
    CHECK(file.calls == 0);
    // Aligned transfers do without.
    CHECK(carry_out(reading(pages.start(), 4096, 0, 4096), too_long, file).error == 0);
}

void asks_the_kernel() {
    std::array<int, 2> pipe_ends{};
    CHECK(pipe(pipe_ends.data()) == 0);
    FileCalls calls;
    Pages pages(4096);
    CHECK(run(reading(pages.start(), 10, 0, 1), calls).error == EBADF);
    Request request = writing(pages.start(), 10, 0, 1);
    request.fd = pipe_ends[1];
    CHECK(run(request, calls).error == ESPIPE);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

}  // namespace

int main() {
    reads_any_extent();
    writes_any_address();
    goes_straight_where_it_can();
    refuses_misaligned_writes();
    refuses_offsets_beyond_any_file();
    stops_at_the_end_of_the_file();
    reads_nothing_beyond_the_end();
    reads_within_a_long_block();
    reports_the_lack_of_a_bounce_buffer();
    asks_the_kernel();
}
