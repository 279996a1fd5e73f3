"""Pickle code: pickles put together by hand, from instructions."""

from __future__ import annotations

__all__ = ["BUILD", "METADATA", "REDUCE", "TUPLE1", "TUPLE2", "named", "program", "text"]

METADATA = "torch.distributed.checkpoint.metadata"
TUPLE1, TUPLE2, REDUCE, BUILD = b"\x85", b"\x86", b"R", b"b"


def text(value: str) -> bytes:
    """Push a short string."""
    encoded = value.encode()
    return b"\x8c" + bytes([len(encoded)]) + encoded


def named(module: str, name: str) -> bytes:
    """Push what a module has under a name."""
    return text(module) + text(name) + b"\x93"


def program(*parts: bytes) -> bytes:
    """Return a pickle of protocol 4."""
    return b"\x80\x04" + b"".join(parts) + b"."
