"""SMART probe: a program that reads the health log of NVMe controllers, and prints it as JSON.

It runs as a process of its own, because a command to a drive that has died waits for its timeout.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys

__all__ = ["main", "parse"]

# linux/nvme_ioctl.h: _IOWR('N', 0x41, struct nvme_passthru_cmd), which has 72 bytes.
ADMIN_COMMAND = 0xC0484E41
# NVM Express Base Specification 2.0, 5.16: Get Log Page, and log 2 with its length.
GET_LOG_PAGE, HEALTH_LOG, LENGTH = 0x02, 0x02, 512
ALL_NAMESPACES = 0xFFFFFFFF


class _Command(ctypes.Structure):
    """struct nvme_passthru_cmd."""

    _fields_ = (
        *(("opcode", ctypes.c_uint8), ("flags", ctypes.c_uint8), ("reserved", ctypes.c_uint16)),
        *(("namespace", ctypes.c_uint32), ("words_2_3", ctypes.c_uint32 * 2)),
        *(("metadata", ctypes.c_uint64), ("address", ctypes.c_uint64)),
        *(("metadata_length", ctypes.c_uint32), ("length", ctypes.c_uint32)),
        *(("word_10", ctypes.c_uint32), ("words_11_15", ctypes.c_uint32 * 5)),
        *(("timeout_ms", ctypes.c_uint32), ("result", ctypes.c_uint32)),
    )


def main(controllers: list[str]) -> dict[str, object]:
    """Return each controller's figures, or why they cannot be had."""
    return {name: _read(f"/dev/{name}") for name in controllers}


def parse(log: bytes) -> dict[str, int]:
    """Return warning bits, and in percent spare, its threshold and wear."""
    return {"warning": log[0], "spare": log[3], "threshold": log[4], "used": log[5]}


def _read(path: str) -> dict[str, object]:
    """One controller's log; reading it changes nothing."""
    log = ctypes.create_string_buffer(LENGTH)
    words = LENGTH // 4 - 1
    command = _Command(
        opcode=GET_LOG_PAGE,
        namespace=ALL_NAMESPACES,
        address=ctypes.addressof(log),
        length=LENGTH,
        word_10=words << 16 | HEALTH_LOG,
    )
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = fcntl.ioctl(fd, ADMIN_COMMAND, command)
        finally:
            os.close(fd)
    except OSError as error:
        return {"error": error.strerror}
    return dict(parse(log.raw)) if status == 0 else {"error": f"NVMe status {status:#x}"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])))
