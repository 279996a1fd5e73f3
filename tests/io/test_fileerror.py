"""An error says what failed and keeps errno and path; of a full disk it tells inodes from bytes.

Method: errors as the kernel's calls raise them. That a full inode table is seen is tested by saves
to one.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dcp_gds.errors import StorageFullError, TransferError
from dcp_gds.io.fileerror import file_error, step_error


def test_a_step_says_what_cannot_be_done_and_what_to_do() -> None:
    error = step_error(OSError(errno.EIO, "broken"), "do it", Path("/a"), remedy="; call help")
    assert type(error) is TransferError
    assert (error.errno, error.filename) == (errno.EIO, "/a")
    assert str(error) == f"[Errno {errno.EIO}] cannot do it: broken; call help: '/a'"


def test_a_step_names_the_path_that_the_kernel_names() -> None:
    error = step_error(OSError(errno.EACCES, "no", "/a/b"), "do it", Path("/a"))
    assert error.filename == "/a/b"


# What is not there cannot be asked for its inodes; /proc has no fixed number of them.
@pytest.mark.parametrize("filename", ["/missing/file", "/proc/file", None])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_that_is_not_known_to_be_for_want_of_inodes(
    number: int, filename: str | None
) -> None:
    cause = OSError(number, "full") if filename is None else OSError(number, "full", filename)
    for error in (step_error(cause, "do it", Path("/a")), file_error(cause, Path("/a"))):
        assert isinstance(error, StorageFullError)
        assert error.errno == number
        assert "inodes" not in str(error)
