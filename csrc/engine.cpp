#include "engine.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <bit>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

namespace dcp_gds {
namespace {

/// Blocks all signals for the calling thread, and for the threads that it starts, while it lives: a
/// handler of the process must not run in a worker, nor interrupt its I/O.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        if (const int error = pthread_sigmask(SIG_SETMASK, &all, &before_); error != 0) {
            throw std::system_error(error, std::generic_category(), "pthread_sigmask");
        }
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_{};
};

const EngineOptions& checked(const EngineOptions& options) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (options.workers == 0 || options.queue_depth == 0) {
        throw std::invalid_argument("workers and queue_depth must be at least 1");
    }
    if (!std::has_single_bit(options.bounce_bytes) || options.bounce_bytes < page) {
        throw std::invalid_argument("bounce_bytes must be a power of two, and at least a page");
    }
    return options;
}

}  // namespace

/// What the workers share. The queue is a ring, allocated once.
class Engine::State {
  public:
    State(const EngineOptions& options, std::unique_ptr<FileCalls> calls)
        : options_(checked(options)), calls_(std::move(calls)), ring_(options.queue_depth) {
        finished_.reserve(options.queue_depth);
        const SignalsBlocked blocked;
        workers_.reserve(options.workers);
        for (std::size_t worker = 0; worker < options.workers; ++worker) {
            workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
            pthread_setname_np(workers_.back().native_handle(), "dcp_gds_io");
        }
    }

    bool is_ours() const noexcept { return getpid() == owner_; }

    void submit(const Request& request) {
        if (!std::has_single_bit(request.alignment) || request.alignment > options_.bounce_bytes) {
            throw std::invalid_argument(
                "alignment must be a power of two, and at most bounce_bytes");
        }
        const std::scoped_lock lock(mutex_);
        if (closed_) {
            throw std::runtime_error("the engine is closed");
        }
        if (in_flight_ == ring_.size()) {
            throw std::runtime_error("the queue depth is reached: reap before submitting more");
        }
        ring_[(first_ + waiting_) % ring_.size()] = request;
        ++waiting_;
        ++in_flight_;
        submitted_.notify_one();
    }

    std::vector<Completion> reap() {
        // Reserved here, so that a worker never has to allocate.
        std::vector<Completion> taken;
        taken.reserve(ring_.size());
        std::unique_lock lock(mutex_);
        completed_.wait(lock, [this] { return !finished_.empty() || in_flight_ == 0; });
        taken.swap(finished_);
        in_flight_ -= taken.size();
        return taken;
    }

    std::size_t in_flight() const {
        const std::scoped_lock lock(mutex_);
        return in_flight_;
    }

    void close() {
        {
            const std::scoped_lock lock(mutex_);
            closed_ = true;
        }
        workers_.clear();  // Each is asked to stop and joined, after the queue is empty.
        const std::scoped_lock lock(mutex_);
        finished_.clear();
        in_flight_ = 0;
    }

  private:
    void work(const std::stop_token& stop) {
        BounceBuffer bounce(options_.bounce_bytes);
        while (const std::optional<Request> request = next(stop)) {
            const Completion completion = carry_out(*request, bounce, *calls_);
            const std::scoped_lock lock(mutex_);
            finished_.push_back(completion);
            completed_.notify_one();
        }
    }

    /// The next request; none when the engine is being closed and the queue is empty.
    std::optional<Request> next(const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        if (!submitted_.wait(lock, stop, [this] { return waiting_ != 0; })) {
            return std::nullopt;
        }
        const Request request = ring_[first_];
        first_ = (first_ + 1) % ring_.size();
        --waiting_;
        return request;
    }

    const EngineOptions options_;
    const std::unique_ptr<FileCalls> calls_;
    const pid_t owner_ = getpid();
    mutable std::mutex mutex_;
    std::condition_variable_any submitted_;
    std::condition_variable completed_;
    std::vector<Request> ring_;
    std::size_t first_ = 0;
    std::size_t waiting_ = 0;
    std::vector<Completion> finished_;
    std::size_t in_flight_ = 0;
    bool closed_ = false;
    // Last, so that the threads end before what they use does, also when starting one fails.
    std::vector<std::jthread> workers_;
};

Engine::Engine(const EngineOptions& options, std::unique_ptr<FileCalls> calls)
    : state_(std::make_unique<State>(options,
                                     calls ? std::move(calls) : std::make_unique<FileCalls>())) {}

Engine::~Engine() {
    // Joining a thread or destroying a condition variable that was waited for, both inherited by a
    // fork, would wait for ever: leave them to the end of the process.
    if (!state_->is_ours()) {
        [[maybe_unused]] const State* left = state_.release();
    }
}

Engine::State& Engine::state() const {
    if (!state_->is_ours()) {
        throw std::runtime_error("the engine belongs to the process that forked this one");
    }
    return *state_;
}

void Engine::submit(const Request& request) {
    state().submit(request);
}

std::vector<Completion> Engine::reap() {
    return state().reap();
}

std::size_t Engine::in_flight() const {
    return state().in_flight();
}

void Engine::close() {
    if (state_->is_ours()) {
        state_->close();
    }
}

}  // namespace dcp_gds
