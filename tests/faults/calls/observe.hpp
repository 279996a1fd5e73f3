// Observe: calls on files below one directory are noted, and chosen ones fail.
//
// They are carried out one at a time, so that their order is known.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace faults {

// What a fault may ask for instead of an errno.
constexpr int kShort = -1;
constexpr std::uint64_t kBlock = 4096;

/// A call and what came of it. `amount` is a length, flags of an open, or a mode.
struct Note {
    std::string name;
    std::string path;
    std::string second_path;
    std::string data;
    std::uint64_t offset = 0;
    std::uint64_t amount = 0;
    std::int64_t result = 0;
    int error = 0;
};

/// Calls `first` to `first + times` of a name fail. `performed`: they do their work all the same.
struct Fault {
    std::string name;
    int first;
    int times;
    int error;
    bool performed;
    int seen = 0;
    int reached = 0;
};

struct State {
    std::mutex mutex;
    std::string directory;
    bool keep_data = false;
    std::vector<Fault> faults;
    std::deque<Note> notes;
    std::map<int, std::string> descriptors;
};

inline std::atomic<bool> active{false};

// Never destroyed: threads still call when the process ends.
inline State& state() {
    static State& made = *new State;
    return made;
}

inline bool is_watched(const std::string& path) {
    const std::string& directory = state().directory;
    return path.starts_with(directory) &&
           (path.size() == directory.size() || path[directory.size()] == '/');
}

/// The path of a descriptor; empty if it is not watched.
inline std::string path_of(int fd) {
    const auto found = state().descriptors.find(fd);
    return found == state().descriptors.end() ? std::string() : found->second;
}

inline std::string path_at(int directory, const char* path) {
    if (path == nullptr || *path == '\0') {
        return path_of(directory);
    }
    return *path == '/' || directory == AT_FDCWD ? path : path_of(directory) + "/" + path;
}

/// Nothing here has to outlive the machine: a sync is noted, and otherwise it would be most of the
/// time.
inline bool is_sync(const std::string& name) {
    return name == "fsync" || name == "fdatasync" || name == "sync_file_range";
}

inline Fault* next_fault(const std::string& name) {
    Fault* found = nullptr;
    for (Fault& fault : state().faults) {
        if (fault.name == name) {
            const int call = fault.seen++;
            if (call >= fault.first && call - fault.first < fault.times) {
                ++fault.reached;
                found = &fault;
            }
        }
    }
    return found;
}

/// Carry out a call, `perform(amount)`, or what a fault makes of it. `amount` is passed on, so that
/// a transfer can be made shorter.
template <typename Result, typename Perform>
Result observe(Note note, Result failure, Perform perform) {
    Fault* const fault = next_fault(note.name);
    Result result{};
    if (fault == nullptr && is_sync(note.name)) {
        result = Result{};
    } else if (fault == nullptr) {
        result = perform(note.amount);
    } else if (fault->error == kShort) {
        // Direct I/O takes whole blocks; what is no longer than one is moved, and said not to be.
        const bool shorten =
            note.amount >= 2 * kBlock || note.name == "read" || note.name == "write";
        const std::uint64_t half = note.amount / 2;
        result = perform(shorten ? half - (half >= kBlock ? half % kBlock : 0) : note.amount);
        if constexpr (std::is_same_v<Result, ssize_t>) {
            result = shorten ? result : std::min(result, static_cast<ssize_t>(half));
        }
    } else {
        if (fault->performed || note.name == "close") {
            perform(note.amount);
        }
        errno = fault->error;
        result = failure;
    }
    const int error = errno;
    if constexpr (std::is_pointer_v<Result>) {
        note.result = result == nullptr ? -1 : 0;
    } else {
        note.result = static_cast<std::int64_t>(result);
    }
    note.error = result == failure ? error : 0;
    state().notes.push_back(std::move(note));
    errno = error;
    return result;
}

/// The same for a call on what may not be watched. `path` finds its path; `data` is what it writes.
template <typename Result, typename Path, typename Perform>
Result watch(const char* name, Path path, Result failure, std::uint64_t amount, off_t offset,
             const void* data, Perform perform, const char* second_path = "") {
    if (!active) {
        return perform(amount);
    }
    std::unique_lock lock(state().mutex);
    Note note{name, path(), second_path, "", static_cast<std::uint64_t>(offset), amount};
    if (!is_watched(note.path)) {
        lock.unlock();
        return perform(amount);
    }
    if (data != nullptr && state().keep_data) {
        note.data.assign(static_cast<const char*>(data), amount);
    }
    return observe(std::move(note), failure, perform);
}

inline auto of(int fd) {
    return [fd] { return path_of(fd); };
}

inline auto of(const char* path) {
    return [path] { return path_at(AT_FDCWD, path); };
}

}  // namespace faults
