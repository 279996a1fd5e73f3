"""GDS error: what kvikio raises, a RuntimeError with a text, as an errno and a remedy.

The texts of cuFile's errors are those of `cufile.h`, which kvikio passes on without their numbers.
A number comes through only where cuFile puts it into errno.
"""

from __future__ import annotations

import errno
import os
import re

from dcp_gds.preflight.cufileerror import CUFILE_ERRORS

__all__ = ["gds_error", "is_lack_of_room", "remedy_for"]

# Registrations of these errors may pass with less memory.
_LACK_OF_ROOM = tuple(CUFILE_ERRORS[number].text for number in (5016, 5036, 5043))
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
        known = CUFILE_ERRORS.get(code)
        text = f"{known.text if known else 'no text known'} (cuFile error {code})"
    return OSError(number, f"cuFile: {text}")


def remedy_for(text: str) -> str:
    """What an operator should do about an error of that text; empty if nothing is known."""
    return next((known.remedy for known in CUFILE_ERRORS.values() if known.text in text), "")


def is_lack_of_room(text: str) -> bool:
    """Whether less memory may be registered where so much was refused."""
    return any(words in text for words in _LACK_OF_ROOM)
