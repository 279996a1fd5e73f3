"""Description: the pickle in a torch.save archive that says what tensor its bytes are.

torch.load(weights_only=True) runs nothing that such a pickle chooses, but gives it what memory it
asks for: `bytearray(1 << 33)` takes 20 bytes. What DCP saves names neither of the two callables by
which a few bytes grow without end.
"""

from __future__ import annotations

import pickletools

from dcp_gds.errors import CorruptCheckpointError

__all__ = ["DESCRIPTION_LENGTH_MAX", "check_description_pickle"]

# A tensor's has some 250 bytes. A pickle of n bytes can ask for n / 6 copies of n bytes, so n has a
# bound.
DESCRIPTION_LENGTH_MAX = 64 << 10
# torch.load warns of any other.
_PROTOCOL = 2
# bytearray(n) is n bytes long, and encode(encode(x, "hex"), "hex") four times as long as x.
_GROWING = frozenset({"bytearray", "encode"})
_NAMING = frozenset({"GLOBAL", "INST", "STACK_GLOBAL"})


def check_description_pickle(data: bytes) -> None:
    """Refuse a pickle that is broken, or that names what could ask for any amount of memory.

    Raises
    ------
    CorruptCheckpointError
        If so.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "PROTO" and argument != _PROTOCOL:
                raise CorruptCheckpointError(
                    f"the archive's description has pickle protocol {argument}, torch.save writes"
                    f" {_PROTOCOL}"
                )
            # torch.load does not know STACK_GLOBAL, whose names are on the stack.
            if opcode.name not in _NAMING:
                continue
            name = str(argument).rpartition(" ")[2]
            if argument is None or name in _GROWING:
                raise CorruptCheckpointError(
                    f"the archive's description names {argument!r}, which no saved tensor needs and"
                    " which could ask for any amount of memory"
                )
    except ValueError as error:
        raise CorruptCheckpointError(f"the archive's description is broken: {error}") from error
