"""Checksum: CRC-32 (IEEE, as in zip archives) of memory, of bytes, and of two parts together."""

from __future__ import annotations

import zlib

from dcp_gds.io.direct import crc32, crc32_combine

__all__ = ["crc32_combine", "crc32_of", "crc32_of_bytes", "crc32_of_zeros"]


def crc32_of(address: int, *, length: int, value: int = 0) -> int:
    """Return the CRC-32 of `length` bytes of memory at `address`.

    Parameters
    ----------
    address, length
        Memory that the caller keeps, unchanged, until the call returns. The interpreter lock is
        released meanwhile when it is 64 KiB or more.
    value
        CRC-32 of the bytes before these, which the result then covers too.
    """
    return crc32(address, length=length, value=value)


def crc32_of_bytes(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 of a bytes-like object; for heads, tails and footers, which are small.

    zlib, because it takes any buffer as it is, where `crc32_of` needs an address.
    """
    return zlib.crc32(data)


def crc32_of_zeros(length: int) -> int:
    """Return the CRC-32 of so many zero bytes, in time that grows with the digits of `length`."""
    total, run, run_length = 0, zlib.crc32(b"\0"), 1
    # Runs of 1, 2, 4 ... bytes; those whose bit is set in `length` make it up.
    while length:
        if length & 1:
            total = crc32_combine(total, run, second_length=run_length)
        run = crc32_combine(run, run, second_length=run_length)
        run_length *= 2
        length >>= 1
    return total
