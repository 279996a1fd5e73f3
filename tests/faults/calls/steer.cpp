// Steer: the functions by which Python, in the same process, says what to watch and what to fail.
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "observe.hpp"

using namespace faults;

/// Watch what is below a directory from now on, and forget all notes and faults.
extern "C" void faults_watch(const char* directory, int keep_data) {
    active = false;
    const std::scoped_lock lock(state().mutex);
    State& all = state();
    all.directory = directory;
    all.keep_data = keep_data != 0;
    all.faults.clear();
    all.notes.clear();
    all.descriptors.clear();
    active = true;
}

extern "C" void faults_stop() {
    active = false;
}

extern "C" void faults_inject(const char* name, int first, int times, int error, int performed) {
    const std::scoped_lock lock(state().mutex);
    state().faults.push_back({name, first, times, error, performed != 0});
}

/// How many calls the fault that was injected as the `index`th has made fail.
extern "C" int faults_reached(int index) {
    return state().faults.at(static_cast<std::size_t>(index)).reached;
}

extern "C" int faults_count() {
    return static_cast<int>(state().notes.size());
}

struct PlainNote {
    const char* name;
    const char* path;
    const char* second_path;
    const char* data;
    std::uint64_t data_length;
    std::uint64_t offset;
    std::uint64_t amount;
    std::int64_t result;
    int error;
};

extern "C" void faults_note(int index, PlainNote* to) {
    const Note& note = state().notes.at(static_cast<std::size_t>(index));
    *to = {note.name.c_str(), note.path.c_str(), note.second_path.c_str(),
           note.data.data(),  note.data.size(),  note.offset,
           note.amount,       note.result,       note.error};
}
