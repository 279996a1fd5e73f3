"""Opcodes: a pickle's instructions, checked before the unpickler runs them.

Python's unpickler allocates what an instruction asks for before it looks whether the data are
there: five bytes make it clear a table of 64 GiB. One damaged byte in a stock `.metadata`, which
has no checksum, is enough for that. So only instructions that `pickle.dump` of protocol 4 and 5
writes are let through, with all of their data at hand.

A regular expression does most of it, as Python would take a second for what it takes 0.1 s for.
"""

from __future__ import annotations

import re
import struct

__all__ = ["check_opcodes"]

_PROTOCOLS = (b"\x80\x04", b"\x80\x05")
_FRAME = 0x95
_STOP = 0x2E
# Length fields of the instructions whose data may be longer than 255 bytes, by opcode: BINUNICODE,
# BINBYTES and LONG4; BINUNICODE8, BINBYTES8 and BYTEARRAY8.
_LENGTH4 = struct.Struct("<I")
_LENGTH8 = struct.Struct("<Q")
_LENGTH_FIELDS = {
    0x58: _LENGTH4,
    0x42: _LENGTH4,
    0x8B: _LENGTH4,
    0x8D: _LENGTH8,
    0x8E: _LENGTH8,
    0x96: _LENGTH8,
}
_RUN = re.compile(
    rb"(?:"
    # Without data: ( N True False ] } ) set, tuples, list, dict and set items, frozenset, reduce,
    # build, newobj, newobj_ex, stack_global, memoize.
    rb"[(N\x88\x89\]})\x8ft\x85\x86\x87aesu\x90\x91Rb\x81\x92\x93\x94]++"
    rb"|[Kh]."  # BININT1, BINGET
    rb"|M.."  # BININT2
    rb"|[Jj]...."  # BININT, LONG_BINGET
    rb"|G.{8}"  # BINFLOAT
    # SHORT_BINUNICODE, SHORT_BINBYTES, LONG1: a length and as many bytes.
    rb"|[\x8cC\x8a](?:%b)"
    rb")*+" % b"|".join(re.escape(bytes([length])) + b".{%d}" % length for length in range(256)),
    re.DOTALL,
)


def check_opcodes(data: bytes | memoryview) -> None:
    """Check that the data are one pickle, and every instruction is known and complete.

    Raises
    ------
    ValueError
        Otherwise; the message names the position.
    """
    end = len(data)
    if bytes(data[:2]) not in _PROTOCOLS:
        raise ValueError("it does not begin as a pickle of protocol 4 or 5")
    position = 2
    # End of the frame that `position` lies in. An instruction that straddles it, or a frame in a
    # frame, is read differently by different unpicklers.
    frame_end: int | None = None
    while True:
        limit = end if frame_end is None else frame_end
        run = _RUN.match(data, position, limit)
        position = run.end() if run else position
        if position == frame_end:
            frame_end = None
            continue
        if position == end:
            raise ValueError("it ends without a STOP")
        opcode = data[position]
        if opcode == _STOP:
            if position + 1 != end:
                raise ValueError(f"it ends at {position + 1}, and {end} bytes are there")
            return
        field = _LENGTH8 if opcode == _FRAME else _LENGTH_FIELDS.get(opcode)
        start = position + 1 + (field.size if field else 0)
        if field is None or start > limit or (opcode == _FRAME and frame_end is not None):
            raise ValueError(f"instruction {opcode:#04x} at {position} is not expected, or cut off")
        (length,) = field.unpack_from(data, position + 1)
        if length > limit - start:
            raise ValueError(f"instruction {opcode:#04x} at {position} wants {length} bytes")
        if opcode == _FRAME:
            position, frame_end = start, start + length
        else:
            position = start + length
