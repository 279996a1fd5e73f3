// Preload: a library before libc whose functions observe the calls of a save or load.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <mutex>
#include <string>

#include "observe.hpp"

using namespace faults;

namespace {

template <typename Function>
Function real(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void remember(int fd, const std::string& path) {
    if (fd >= 0 && active) {
        const std::scoped_lock lock(state().mutex);
        state().descriptors[fd] = path;
    }
}

int open_at(int directory, const char* path, int flags, mode_t mode) {
    static const auto next = real<int (*)(int, const char*, int, ...)>("openat");
    std::string full;
    const auto find = [&] {
        const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
        full = path_at(directory, path) + (unnamed ? "/(unnamed)" : "");
        return full;
    };
    const int fd = watch("open", find, -1, static_cast<unsigned>(flags), 0, nullptr,
                         [&](std::uint64_t) { return next(directory, path, flags, mode); });
    remember(fd, full);
    return fd;
}

}  // namespace

// The linker alone is told libc's names: the headers declare them with other attributes. glibc has
// most of them twice, and on 64-bit machines both are the same.
#define HOOK(result, name, ...)                                \
    extern "C" result hook_##name(__VA_ARGS__) __asm__(#name); \
    extern "C" result hook_##name(__VA_ARGS__)
#define ALIAS(other, name) \
    extern "C" decltype(hook_##name) hook_##other __asm__(#other) __attribute__((alias(#name)))
#define NEXT(name) static const auto next = real<decltype(&hook_##name)>(#name)

HOOK(int, openat, int at, const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return open_at(at, path, flags, mode);
}
ALIAS(openat64, openat);

HOOK(int, open, const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return open_at(AT_FDCWD, path, flags, mode);
}
ALIAS(open64, open);

HOOK(int, close, int fd) {
    NEXT(close);
    const int result =
        watch("close", of(fd), -1, 0, 0, nullptr, [&](std::uint64_t) { return next(fd); });
    if (active) {
        const std::scoped_lock lock(state().mutex);
        state().descriptors.erase(fd);
    }
    return result;
}

HOOK(ssize_t, pread, int fd, void* to, size_t length, off_t offset) {
    NEXT(pread);
    return watch("pread", of(fd), ssize_t{-1}, length, offset, nullptr,
                 [&](std::uint64_t amount) { return next(fd, to, amount, offset); });
}
ALIAS(pread64, pread);

// Python gives one piece of memory.
HOOK(ssize_t, preadv2, int fd, const iovec* to, int count, off_t offset, int flags) {
    NEXT(preadv2);
    return watch("pread", of(fd), ssize_t{-1}, to->iov_len, offset, nullptr,
                 [&](std::uint64_t amount) {
                     const iovec piece{to->iov_base, amount};
                     return next(fd, count == 1 ? &piece : to, count, offset, flags);
                 });
}
ALIAS(preadv64v2, preadv2);

HOOK(ssize_t, pwrite, int fd, const void* from, size_t length, off_t offset) {
    NEXT(pwrite);
    return watch("pwrite", of(fd), ssize_t{-1}, length, offset, from,
                 [&](std::uint64_t amount) { return next(fd, from, amount, offset); });
}
ALIAS(pwrite64, pwrite);

HOOK(ssize_t, read, int fd, void* to, size_t length) {
    NEXT(read);
    return watch("read", of(fd), ssize_t{-1}, length, 0, nullptr,
                 [&](std::uint64_t amount) { return next(fd, to, amount); });
}

HOOK(ssize_t, write, int fd, const void* from, size_t length) {
    NEXT(write);
    return watch("write", of(fd), ssize_t{-1}, length, 0, from,
                 [&](std::uint64_t amount) { return next(fd, from, amount); });
}

HOOK(int, ftruncate, int fd, off_t length) {
    NEXT(ftruncate);
    return watch("ftruncate", of(fd), -1, 0, length, nullptr,
                 [&](std::uint64_t) { return next(fd, length); });
}
ALIAS(ftruncate64, ftruncate);

HOOK(int, fallocate, int fd, int mode, off_t offset, off_t length) {
    NEXT(fallocate);
    return watch("fallocate", of(fd), -1, 0, length, nullptr,
                 [&](std::uint64_t) { return next(fd, mode, offset, length); });
}
ALIAS(fallocate64, fallocate);

HOOK(int, fsync, int fd) {
    NEXT(fsync);
    return watch("fsync", of(fd), -1, 0, 0, nullptr, [&](std::uint64_t) { return next(fd); });
}

HOOK(int, fdatasync, int fd) {
    NEXT(fdatasync);
    return watch("fdatasync", of(fd), -1, 0, 0, nullptr, [&](std::uint64_t) { return next(fd); });
}

HOOK(int, sync_file_range, int fd, off_t offset, off_t length, unsigned flags) {
    NEXT(sync_file_range);
    return watch("sync_file_range", of(fd), -1, 0, offset, nullptr,
                 [&](std::uint64_t) { return next(fd, offset, length, flags); });
}

// Unlike the others it returns its errno.
HOOK(int, posix_fadvise, int fd, off_t offset, off_t length, int advice) {
    NEXT(posix_fadvise);
    const auto perform = [&](std::uint64_t) {
        errno = next(fd, offset, length, advice);
        return errno == 0 ? 0 : -1;
    };
    return watch("posix_fadvise", of(fd), -1, 0, offset, nullptr, perform) == 0 ? 0 : errno;
}
ALIAS(posix_fadvise64, posix_fadvise);

HOOK(int, flock, int fd, int operation) {
    NEXT(flock);
    return watch("flock", of(fd), -1, 0, 0, nullptr,
                 [&](std::uint64_t) { return next(fd, operation); });
}

HOOK(int, rename, const char* from, const char* to) {
    NEXT(rename);
    return watch(
        "rename", of(from), -1, 0, 0, nullptr, [&](std::uint64_t) { return next(from, to); }, to);
}

HOOK(int, unlink, const char* path) {
    NEXT(unlink);
    return watch("unlink", of(path), -1, 0, 0, nullptr, [&](std::uint64_t) { return next(path); });
}

HOOK(int, mkdir, const char* path, mode_t mode) {
    NEXT(mkdir);
    return watch("mkdir", of(path), -1, 0, 0, nullptr,
                 [&](std::uint64_t) { return next(path, mode); });
}

HOOK(int, stat, const char* path, struct stat* to) {
    NEXT(stat);
    return watch("stat", of(path), -1, 0, 0, nullptr,
                 [&](std::uint64_t) { return next(path, to); });
}
ALIAS(stat64, stat);

HOOK(int, lstat, const char* path, struct stat* to) {
    NEXT(lstat);
    return watch("stat", of(path), -1, 0, 0, nullptr,
                 [&](std::uint64_t) { return next(path, to); });
}
ALIAS(lstat64, lstat);

HOOK(int, fstatat, int at, const char* path, struct stat* to, int flags) {
    NEXT(fstatat);
    return watch(
        "stat", [&] { return path_at(at, path); }, -1, 0, 0, nullptr,
        [&](std::uint64_t) { return next(at, path, to, flags); });
}
ALIAS(fstatat64, fstatat);

HOOK(int, fstat, int fd, struct stat* to) {
    NEXT(fstat);
    return watch("fstat", of(fd), -1, 0, 0, nullptr, [&](std::uint64_t) { return next(fd, to); });
}
ALIAS(fstat64, fstat);

HOOK(int, fstatvfs, int fd, struct statvfs* to) {
    NEXT(fstatvfs);
    return watch("fstatvfs", of(fd), -1, 0, 0, nullptr,
                 [&](std::uint64_t) { return next(fd, to); });
}
ALIAS(fstatvfs64, fstatvfs);

HOOK(int, fstatfs, int fd, struct statfs* to) {
    NEXT(fstatfs);
    return watch("fstatfs", of(fd), -1, 0, 0, nullptr, [&](std::uint64_t) { return next(fd, to); });
}

HOOK(DIR*, opendir, const char* path) {
    NEXT(opendir);
    DIR* const none = nullptr;
    return watch("opendir", of(path), none, 0, 0, nullptr,
                 [&](std::uint64_t) { return next(path); });
}

// The extension asks for statx by its number; others call the kernel through here for anything
// else.
HOOK(long, syscall, long number, ...) {
    NEXT(syscall);
    va_list list;
    va_start(list, number);
    long given[6];
    for (long& argument : given) {
        argument = va_arg(list, long);
    }
    va_end(list);
    const auto perform = [&](std::uint64_t) {
        return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
    };
    if (number != SYS_statx) {
        return perform(0);
    }
    const auto path = [&] {
        return path_at(static_cast<int>(given[0]), reinterpret_cast<const char*>(given[1]));
    };
    return watch("statx", path, long{-1}, 0, 0, nullptr, perform);
}
