// Python bindings, and nothing else: argument names, the GIL, and exceptions that keep their errno.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "crc32.hpp"
#include "engine.hpp"
#include "file.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace dcp_gds {
namespace {

// Below this a CRC takes less time than releasing and taking the GIL again, with others waiting.
constexpr std::size_t kReleaseGilBytes = std::size_t{64} << 10;

std::byte* memory_at(std::uintptr_t address) {
    return reinterpret_cast<std::byte*>(address);
}

const Crc32Kind& kind_named(const std::optional<std::string>& name) {
    for (const Crc32Kind& kind : crc32_kinds()) {
        if (!name || kind.name == *name) {
            return kind;
        }
    }
    throw std::invalid_argument("CRC-32 kind '" + *name + "' does not run on this CPU");
}

std::uint32_t crc32_at(std::uintptr_t address, std::size_t length, std::uint32_t value,
                       const std::optional<std::string>& kind) {
    const Crc32Kind& chosen = kind_named(kind);
    const std::span<const std::byte> data(memory_at(address), length);
    if (length < kReleaseGilBytes) {
        return crc32(chosen, data, value);
    }
    const nb::gil_scoped_release released;
    return crc32(chosen, data, value);
}

std::vector<std::string> kind_names() {
    std::vector<std::string> names;
    for (const Crc32Kind& kind : crc32_kinds()) {
        names.emplace_back(kind.name);
    }
    return names;
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> dio_alignment_of(int fd) {
    const std::optional<DioAlignment> found = dio_alignment(fd);
    if (!found) {
        return std::nullopt;
    }
    return std::pair(found->memory, found->offset);
}

void raise_os_error(const std::exception_ptr& thrown, void* /*unused*/) {
    try {
        std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrno(PyExc_OSError);
    }
}

void bind_engine(nb::module_& module) {
    nb::class_<Completion>(module, "Completion")
        .def_ro("ticket", &Completion::ticket)
        .def_ro("done", &Completion::done)
        .def_ro("errno", &Completion::error)
        .def_ro("crc32", &Completion::crc32)
        .def_ro("moved", &Completion::moved)
        .def_ro("retries", &Completion::retries);
    nb::class_<Engine>(module, "Engine")
        .def(
            "__init__",
            [](Engine* self, std::size_t workers, std::size_t queue_depth,
               std::size_t bounce_bytes) {
                new (self) Engine(
                    {.workers = workers, .queue_depth = queue_depth, .bounce_bytes = bounce_bytes});
            },
            nb::kw_only(), "workers"_a, "queue_depth"_a, "bounce_bytes"_a)
        .def(
            "submit",
            [](Engine& self, std::uint64_t ticket, bool write, int fd, std::uintptr_t address,
               std::uint64_t length, std::uint64_t offset, std::uint64_t alignment, bool checksum) {
                self.submit({.ticket = ticket,
                             .direction = write ? Direction::kWrite : Direction::kRead,
                             .fd = fd,
                             .memory = memory_at(address),
                             .length = length,
                             .offset = offset,
                             .alignment = alignment,
                             .checksum = checksum});
            },
            nb::kw_only(), "ticket"_a, "write"_a, "fd"_a, "address"_a, "length"_a, "offset"_a,
            "alignment"_a, "checksum"_a)
        .def("reap", &Engine::reap, nb::call_guard<nb::gil_scoped_release>())
        .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("in_flight", &Engine::in_flight);
}

}  // namespace
}  // namespace dcp_gds

NB_MODULE(_core, module) {
    using namespace dcp_gds;
    nb::register_exception_translator(raise_os_error, nullptr);
    module.def("crc32", crc32_at, "address"_a, nb::kw_only(), "length"_a, "value"_a = 0,
               "kind"_a = nb::none());
    module.def("crc32_combine", crc32_combine, "first"_a, "second"_a, nb::kw_only(),
               "second_length"_a);
    module.def("crc32_kind", [] { return std::string(crc32_kinds().front().name); });
    module.def("crc32_kinds", kind_names);
    module.def("dio_alignment", dio_alignment_of, "fd"_a);
    module.def("preallocate", preallocate, "fd"_a, nb::kw_only(), "length"_a,
               nb::call_guard<nb::gil_scoped_release>());
    bind_engine(module);
}
