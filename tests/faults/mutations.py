"""Mutations: valid bytes with bytes, numbers or stretches changed, as a hypothesis strategy."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

__all__ = ["mutated"]

# What numbers in records are most likely to be taken amiss.
_EDGES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    """The valid bytes after one to six changes; now and then bytes that are just random."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=600))
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 40))
        match draw(st.sampled_from(["byte", "number", "cut", "copy", "insert", "end"])):
            case "byte":
                data[start : start + 1] = draw(st.binary(min_size=1, max_size=1))
            case "number":
                number = draw(st.sampled_from(_EDGES))
                code = draw(st.sampled_from(["<Q", "<I", "<H"]))
                number &= (1 << (8 * struct.calcsize(code))) - 1
                data[start : start + struct.calcsize(code)] = struct.pack(code, number)
            case "cut":
                del data[start : start + length]
            case "copy":
                source = draw(st.integers(0, len(data)))
                data[start : start + length] = data[source : source + length]
            case "insert":
                data[start:start] = draw(st.binary(max_size=40))
            case "end":
                del data[max(start, len(data) - length) :]
    return bytes(data)
