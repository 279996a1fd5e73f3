// Transfers whose calls fail: against a file in memory that fails where it is asked to, each fault
// and how long it is put up with.
#include <algorithm>

#include "check.hpp"
#include "crc32.hpp"
#include "memory_file.hpp"
#include "requests.hpp"
#include "transfer.hpp"

namespace {

using namespace dcp_gds;

void goes_on_after_interruptions() {
    MemoryFile file({}, 4096);
    Pages pages(8192);
    file.errors = {EINTR, EAGAIN, EINTR};
    const Completion completion = run(writing(pages.start(), 8192, 0, 4096), file);
    CHECK(completion.error == 0 && completion.done == 8192 && completion.retries == 3);
    CHECK(completion.moved == 8192);
    // However many there are, as long as something is moved in between.
    Pages long_pages(400 * 4096);
    file.call_bytes_max = 4096;
    for (int call = 0; call < 400; ++call) {
        file.errors.insert(file.errors.end(), {EINTR, 0});
    }
    CHECK(run(writing(long_pages.start(), 400 * 4096, 0, 4096), file).error == 0);
}

void gives_up_after_too_many_interruptions() {
    MemoryFile file({}, 4096);
    Pages pages(8192);
    file.errors.assign(1000, EINTR);
    CHECK(run(writing(pages.start(), 8192, 0, 4096), file).error == EINTR);
    CHECK(file.calls < 100);
    // A write that moves nothing and says nothing.
    file.errors.clear();
    file.call_bytes_max = 0;
    CHECK(run(writing(pages.start(), 8192, 0, 4096), file).error == EIO);
    CHECK(file.calls < 200);
}

void tries_again_after_an_io_error() {
    const std::vector<std::byte> content = random_bytes(65536);
    for (const std::size_t shift : Lengths{0, 8}) {
        MemoryFile file(content, 4096);
        Pages pages(65536 + 8);
        file.errors = {EIO};
        Completion completion = run(reading(pages.start() + shift, 65536, 0, 4096), file);
        CHECK(completion.error == 0 && completion.done == 65536 && completion.retries == 1);
        CHECK(completion.crc32 == crc32(content, 0));
        CHECK(std::ranges::equal(std::span(pages.start() + shift, 65536), content));
        file.content.clear();
        file.errors = {EIO, EIO, EIO};
        completion = run(writing(pages.start() + shift, 65536, 0, 4096), file);
        CHECK(completion.error == 0 && completion.done == 65536 && completion.retries == 3);
        CHECK(completion.crc32 == crc32(content, 0) && file.content == content);
    }
}

void gives_up_after_too_many_io_errors() {
    MemoryFile file(random_bytes(65536), 4096);
    Pages pages(65536);
    for (const auto& request :
         {reading(pages.start(), 65536, 0, 4096), writing(pages.start(), 65536, 0, 4096)}) {
        file.calls = 0;
        file.errors.assign(10, EIO);
        CHECK(run(request, file).error == EIO);
        CHECK(file.calls == 1 + 3);
        // Those of one transfer are counted together, whatever is moved in between.
        file.call_bytes_max = 4096;
        file.errors = {0, EIO, 0, EIO, 0, EIO, 0, EIO};
        const Completion completion = run(request, file);
        CHECK(completion.error == EIO && completion.done == 4 * 4096);
        // Four short transfers and three errors.
        CHECK(completion.retries == 4 + 3);
        file.call_bytes_max = UINT64_MAX;
    }
}

void keeps_the_errno_and_what_was_done() {
    MemoryFile file({}, 4096);
    Pages pages(65536);
    for (const std::size_t shift : Lengths{0, 8}) {
        file.call_bytes_max = 8192;
        file.errors = {0, ENOSPC};
        const Completion completion = run(writing(pages.start() + shift, 32768, 0, 4096), file);
        CHECK(completion.error == ENOSPC && completion.done == 8192);
    }
}

}  // namespace

int main() {
    goes_on_after_interruptions();
    gives_up_after_too_many_interruptions();
    tries_again_after_an_io_error();
    gives_up_after_too_many_io_errors();
    keeps_the_errno_and_what_was_done();
}
