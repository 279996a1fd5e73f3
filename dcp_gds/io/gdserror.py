"""GDS error: what kvikio raises, a RuntimeError with a text, as an errno and a remedy.

The texts of cuFile's errors are those of `cufile.h`, which kvikio passes on without their numbers.
A number comes through only where cuFile puts it into errno.
"""

from __future__ import annotations

import errno
import os
import re

__all__ = ["gds_error", "is_lack_of_room", "remedy_for"]

# cuFile's text, its number, and what to do about it.
_REMEDIES = (
    (
        "GPUDirect Storage not supported on current file",
        5008,
        "put the checkpoint on ext4 or xfs on local NVMe, and load nvidia-fs or set up P2PDMA;"
        " `gdscheck PATH` says which is missing",
    ),
    (
        "access beyond maximum pinned size",
        5016,
        "raise max_device_pinned_mem_size_kb in cufile.json, or run fewer processes on this GPU",
    ),
    (
        "file descriptor is not registered",
        5027,
        "an overlay or a container hides the drive: bind-mount a directory of the NVMe drive into"
        " the container, and pass --device=/dev/nvidia-fs0",
    ),
    (
        "internal error",
        5030,
        "cuFile finds no block device behind the file: bind-mount a directory of the NVMe drive and"
        " /run/udev into the container, and read cufile.log",
    ),
    (
        "nvidia-fs driver is not loaded",
        5001,
        "`modprobe nvidia-fs` (package nvidia-gds), or set use_pci_p2pdma in cufile.json",
    ),
    ("NVFS driver initialization error", 5033, "`modprobe nvidia-fs`, and read `dmesg`"),
    (
        "failed to allocate pinned GPU Memory",
        5036,
        "the GPU's BAR1 memory is full (`nvidia-smi -q -d MEMORY`): run fewer processes on it",
    ),
    ("cufile no memory error", 5043, "the GPU's BAR1 memory is full: run fewer processes on it"),
)
# Registrations of these errors may pass with less memory.
_LACK_OF_ROOM = (
    "access beyond maximum pinned size",
    "failed to allocate pinned GPU Memory",
    "cufile no memory error",
)
# `KvikIO failure at: /source/file.cpp:280: text`, `cuFile error at: ...`
_WHERE = re.compile(r"^[^:]* at: \S+:\d+: (cuFile error:)?")
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


def gds_error(error: RuntimeError, *, reading: bool = False) -> OSError:
    """Return an OSError with errno and text.

    Parameters
    ----------
    error
        As kvikio raised it. Where its text has no errno, EIO is taken.
    reading
        It is of a transfer to the GPU. kvikio takes the -1 of a failed read for an errno, 1, which
        is EPERM, and loses the true one.
    """
    text = _WHERE.sub("", str(error)).strip()
    if reading and text == os.strerror(errno.EPERM):
        return OSError(errno.EIO, "cuFile's read failed, and kvikio has lost its error number")
    number = _NUMBERS.get(text.rpartition(": ")[2], errno.EIO)
    unknown = re.search(r"Unknown error (\d+)$", text)
    if unknown:
        # cuFile puts its own numbers into errno too, and strerror does not know them.
        code = int(unknown[1])
        words = next((words for words, known, _ in _REMEDIES if known == code), "no text known")
        text = f"{words} (cuFile error {code})"
    return OSError(number, f"cuFile: {text}")


def remedy_for(text: str) -> str:
    """What an operator should do about an error of that text; empty if nothing is known."""
    return next((remedy for words, _, remedy in _REMEDIES if words in text), "")


def is_lack_of_room(text: str) -> bool:
    """Whether less memory may be registered where so much was refused."""
    return any(words in text for words in _LACK_OF_ROOM)
