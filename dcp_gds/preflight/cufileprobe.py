"""CuFile probe: a program that moves GPU memory to a file and back by cuFile, and prints JSON.

It runs as a process of its own, by its file's name and without the package, because cuFile is known
to hang, to abort and to divide by zero while its driver opens. Its settings forbid compat mode, so
that what comes back has taken the direct way.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import secrets
import sys
import time

__all__ = ["main"]

CUDA = "libcuda.so.1"
LENGTH = 4 << 20
REPEATS = 8
OPAQUE_FD = 1


class _Status(ctypes.Structure):
    """CUfileError_t."""

    _fields_ = (("code", ctypes.c_int), ("cuda", ctypes.c_int))


class _Descriptor(ctypes.Structure):
    """CUfileDescr_t; a descriptor's number lies at the start of its union."""

    _fields_ = (("kind", ctypes.c_int), ("fd", ctypes.c_void_p), ("operations", ctypes.c_void_p))


class StepError(Exception):
    """A call failed; its two arguments are the call's name and the number it gave."""


def main(path: str, library: str, properties: dict[str, object]) -> dict[str, object]:
    """Return whether the bytes came back as written, or the call that failed and its number."""
    _write_settings(properties)
    try:
        cuda, cufile = ctypes.CDLL(CUDA), ctypes.CDLL(library)
    except OSError as error:
        return {"step": "load", "error": str(error)}
    try:
        return _exercise(cuda, cufile, path)
    except StepError as error:
        return {"step": error.args[0], "code": error.args[1]}
    except OSError as error:
        return {"step": "open", "error": error.strerror}


def _write_settings(properties: dict[str, object]) -> None:
    """Give cuFile settings of our own, in a file that has no name and ends with this process."""
    settings = {
        "logging": {"level": "ERROR"},
        "properties": properties | {"allow_compat_mode": False},
        "fs": {"generic": {"posix_unaligned_writes": False}},
    }
    fd = os.memfd_create("cufile.json")
    os.write(fd, json.dumps(settings).encode())
    os.environ["CUFILE_ENV_PATH_JSON"] = f"/proc/self/fd/{fd}"
    # The variables win over the file: the user's must not let compat mode in.
    for name in ("CUFILE_ALLOW_COMPAT_MODE", "CUFILE_FORCE_COMPAT_MODE"):
        os.environ[name] = "false"


def _exercise(cuda: ctypes.CDLL, cufile: ctypes.CDLL, path: str) -> dict[str, object]:
    """Both directions: the drive reads the GPU, then writes it."""
    for function in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister"):
        getattr(cufile, function).restype = _Status
    for function in ("cuFileWrite", "cuFileRead"):
        getattr(cufile, function).restype = ctypes.c_ssize_t
    address = ctypes.c_uint64()
    _context(cuda)
    _call(cuda, "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(LENGTH))
    _call(cufile, "cuFileDriverOpen")
    fd = _open(path)
    try:
        handle = ctypes.c_void_p()
        about = _Descriptor(OPAQUE_FD, fd, None)
        _call(cufile, "cuFileHandleRegister", ctypes.byref(handle), ctypes.byref(about))
        memory = ctypes.c_void_p(address.value)
        _call(cufile, "cuFileBufRegister", memory, ctypes.c_size_t(LENGTH), 0)
        seen = _there_and_back(cuda, cufile, fd, handle, address)
        cufile.cuFileBufDeregister(memory)
        cufile.cuFileHandleDeregister(handle)
        return seen
    finally:
        os.close(fd)


def _there_and_back(
    cuda: ctypes.CDLL, cufile: ctypes.CDLL, fd: int, handle: ctypes.c_void_p, gpu: ctypes.c_uint64
) -> dict[str, object]:
    """Write and compare what the host reads, then read into cleared memory and compare that."""
    length = ctypes.c_size_t(LENGTH)
    written = os.urandom(LENGTH)
    _call(cuda, "cuMemcpyHtoD_v2", gpu, written, length)
    _transfer(cufile, "cuFileWrite", handle, gpu, 0)
    with mmap.mmap(-1, LENGTH) as seen_by_host:
        os.preadv(fd, [seen_by_host], 0)
        wrote = seen_by_host[:] == written
    _call(cuda, "cuMemcpyHtoD_v2", gpu, bytes(LENGTH), length)
    _transfer(cufile, "cuFileRead", handle, gpu, 0)
    back = ctypes.create_string_buffer(LENGTH)
    _call(cuda, "cuMemcpyDtoH_v2", back, gpu, length)
    started = time.monotonic()
    for index in range(REPEATS):
        _transfer(cufile, "cuFileWrite", handle, gpu, index * LENGTH)
    os.fdatasync(fd)
    speed = round(REPEATS * LENGTH / (time.monotonic() - started))
    return {"wrote": wrote, "read": back.raw == written, "bytes_per_s": speed}


def _context(cuda: ctypes.CDLL) -> None:
    """Make GPU 0 current: cuFile's driver does not open without a context."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(cuda, "cuInit", 0)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(cuda, "cuCtxPushCurrent_v2", context)


def _transfer(
    cufile: ctypes.CDLL, name: str, handle: ctypes.c_void_p, gpu: ctypes.c_uint64, offset: int
) -> None:
    """One transfer of the whole buffer."""
    done = getattr(cufile, name)(
        handle,
        ctypes.c_void_p(gpu.value),
        ctypes.c_size_t(LENGTH),
        ctypes.c_int64(offset),
        ctypes.c_int64(0),
    )
    if done != LENGTH:
        # A negative result is the number; -1 leaves it in errno, and a short transfer has none.
        raise StepError(name, -done if done < -1 else 0)


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """A call that returns a CUresult or a CUfileError_t, which have to be 0."""
    result = getattr(library, name)(*arguments)
    code = (result.code or result.cuda) if isinstance(result, _Status) else result
    if code:
        raise StepError(name, code)


def _open(path: str) -> int:
    """A new file opened with O_DIRECT that is gone when it is closed."""
    # cuFile looks at the file's name in /proc: one without a name might be refused for that alone.
    name = os.path.join(path, f".dcp_gds-probe-{secrets.token_hex(8)}")  # noqa: PTH118
    flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    fd = os.open(name, flags, 0o600)
    os.unlink(name)  # noqa: PTH108
    return fd


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
