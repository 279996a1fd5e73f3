// The engine's queue, its bounds and its end, with a gate in place of a slow drive.
#include "engine.hpp"

#include <initializer_list>
#include <semaphore>
#include <set>
#include <stdexcept>
#include <thread>

#include "check.hpp"

namespace {

using namespace dcp_gds;
using Lengths = std::initializer_list<std::size_t>;

/// Reads nothing, successfully, once the gate lets it through.
class Gate : public FileCalls {
  public:
    explicit Gate(std::counting_semaphore<>& passes) : passes_(passes) {}
    std::int64_t read(int /*fd*/, std::span<std::byte> memory,
                      std::uint64_t /*offset*/) noexcept override {
        passes_.acquire();
        return static_cast<std::int64_t>(memory.size());
    }

  private:
    std::counting_semaphore<>& passes_;
};

class Gated {
  public:
    Gated(std::size_t workers, std::size_t queue_depth)
        : engine({.workers = workers, .queue_depth = queue_depth, .bounce_bytes = 65536},
                 std::make_unique<Gate>(passes)) {}

    void submit(std::uint64_t ticket) {
        engine.submit({.ticket = ticket,
                       .direction = Direction::kRead,
                       .fd = -1,
                       .memory = &target,
                       .length = 1,
                       .offset = 0,
                       .alignment = 1,
                       .checksum = false});
    }

    std::byte target{};
    std::counting_semaphore<> passes{0};
    Engine engine;
};

void bounds_what_is_in_flight() {
    Gated gated(2, 5);
    for (std::uint64_t ticket = 0; ticket < 5; ++ticket) {
        gated.submit(ticket);
    }
    CHECK(gated.engine.in_flight() == 5);
    CHECK_THROWS(gated.submit(5), std::runtime_error);
    gated.passes.release(1);
    // What has finished counts until it is reaped.
    const std::size_t reaped = gated.engine.reap().size();
    CHECK(reaped == 1 && gated.engine.in_flight() == 4);
    gated.submit(5);
    CHECK_THROWS(gated.submit(6), std::runtime_error);
    gated.passes.release(5);
}

void returns_every_ticket_once() {
    constexpr std::uint64_t kTransfers = 10'000;
    Gated gated(3, 7);
    gated.passes.release(kTransfers);
    std::set<std::uint64_t> seen;
    for (std::uint64_t ticket = 0; ticket < kTransfers || gated.engine.in_flight() != 0;) {
        while (ticket < kTransfers && gated.engine.in_flight() < 7) {
            gated.submit(ticket++);
        }
        for (const Completion& completion : gated.engine.reap()) {
            CHECK(completion.error == 0 && seen.insert(completion.ticket).second);
        }
    }
    CHECK(seen.size() == kTransfers);
}

void does_not_wait_for_nothing() {
    Gated gated(1, 1);
    CHECK(gated.engine.reap().empty());
}

void closes_after_what_was_submitted() {
    Gated gated(1, 8);
    for (std::uint64_t ticket = 0; ticket < 8; ++ticket) {
        gated.submit(ticket);
    }
    std::jthread opener([&gated] { gated.passes.release(8); });
    gated.engine.close();
    gated.engine.close();
    CHECK(!gated.passes.try_acquire());
    CHECK(gated.engine.in_flight() == 0 && gated.engine.reap().empty());
    CHECK_THROWS(gated.submit(9), std::runtime_error);
}

void checks_its_options() {
    const EngineOptions good{.workers = 1, .queue_depth = 1, .bounce_bytes = 65536};
    EngineOptions bad = good;
    bad.workers = 0;
    CHECK_THROWS(Engine{bad}, std::invalid_argument);
    bad = good;
    bad.queue_depth = 0;
    CHECK_THROWS(Engine{bad}, std::invalid_argument);
    for (const std::size_t bounce_bytes : Lengths{0, 2048, 65537}) {
        bad = good;
        bad.bounce_bytes = bounce_bytes;
        CHECK_THROWS(Engine{bad}, std::invalid_argument);
    }
    Engine engine(good);
    for (const std::uint64_t alignment : Lengths{0, 3, 131072}) {
        const Request request{.ticket = 0,
                              .direction = Direction::kRead,
                              .fd = -1,
                              .memory = nullptr,
                              .length = 0,
                              .offset = 0,
                              .alignment = alignment,
                              .checksum = false};
        CHECK_THROWS(engine.submit(request), std::invalid_argument);
    }
    CHECK(engine.in_flight() == 0);
}

}  // namespace

int main() {
    bounds_what_is_in_flight();
    returns_every_ticket_once();
    does_not_wait_for_nothing();
    closes_after_what_was_submitted();
    checks_its_options();
}
