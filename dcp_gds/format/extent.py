"""Extent: a half-open range of bytes in a file."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Extent", "round_down", "round_up"]


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Bytes [offset, offset + length) of a file."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """Offset of the first byte behind the extent."""
        return self.offset + self.length


def round_down(value: int, *, alignment: int) -> int:
    """Largest multiple of `alignment`, a power of two, that is not above `value`."""
    return value & -alignment


def round_up(value: int, *, alignment: int) -> int:
    """Smallest multiple of `alignment`, a power of two, that is not below `value`."""
    return (value + alignment - 1) & -alignment
