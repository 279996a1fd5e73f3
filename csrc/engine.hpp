// Engine: a fixed number of threads that carry out transfers from a bounded queue.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transfer.hpp"

namespace dcp_gds {

struct EngineOptions {
    // Threads, and so the most requests that the drive sees at a time.
    std::size_t workers;
    // Most requests that are submitted and not yet reaped.
    std::size_t queue_depth;
    // Length of each worker's bounce buffer: a multiple of the page size and a power of two.
    std::size_t bounce_bytes;
};

/// Submit and reap from one thread at a time. All signals are blocked in the workers.
///
/// An engine does not work in a child that was forked while it existed: its threads are not there.
/// In such a child `submit` and `reap` throw, and `close` and the destructor leave everything
/// alone.
class Engine {
  public:
    /// Throws std::invalid_argument, and std::system_error when there are no more threads to be
    /// had.
    explicit Engine(const EngineOptions& options, std::unique_ptr<FileCalls> calls = nullptr);
    /// Closes.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// Queue a request. Never blocks. Throws std::invalid_argument when its alignment is
    /// impossible, std::runtime_error when the engine is closed or the queue depth is reached.
    void submit(const Request& request);

    /// Wait until something has finished, unless nothing is in flight, and take all that has.
    std::vector<Completion> reap();

    /// Requests submitted and not yet reaped.
    std::size_t in_flight() const;

    /// Carry out what was submitted, discard the completions, and end the threads. May be repeated.
    void close();

  private:
    class State;
    State& state() const;
    std::unique_ptr<State> state_;
};

}  // namespace dcp_gds
