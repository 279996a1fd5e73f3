"""Envelope: the bytes that torch.save puts around a tensor's payload.

Head and tail come from torch.save itself, run on a FakeTensor under `skip_data`, so that they are
whatever the running torch writes. Only the CRC-32 of the payload is filled in later, in the two
places where a zip archive keeps it: the data descriptor behind the payload and the entry in the
central directory.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.serialization import skip_data
from torch.utils.serialization import config as serialization_config
from typing_extensions import Buffer

from dcp_gds.errors import UnsupportedError
from dcp_gds.format.zipdirectory import ZipEntry, local_header_length, read_directory

__all__ = ["Envelope", "EnvelopeCache", "TensorForm"]

_PAYLOAD_ENTRY_SUFFIX = "/data/0"
_SERIALIZATION_ID_SUFFIX = "/.data/serialization_id"
_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
_CRC32 = struct.Struct("<I")


class TensorForm(NamedTuple):
    """A tensor's dtype, size and stride in elements; all that its envelope depends on.

    The strides are those of a dense tensor: its elements fill `length` bytes without gap or
    overlap.
    """

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def contiguous(cls, dtype: torch.dtype, size: Sequence[int]) -> TensorForm:
        """The form of a contiguous tensor."""
        strides = []
        stride = 1
        for extent in reversed(size):
            strides.append(stride)
            stride *= max(extent, 1)
        return cls(dtype, tuple(size), tuple(reversed(strides)))

    @property
    def length(self) -> int:
        """Payload bytes."""
        numel = 1
        for extent in self.size:
            numel *= extent
        return numel * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Envelope:
    """Head and tail of a `torch.save` archive whose payload, of that form, lies between them."""

    form: TensorForm
    head: bytes
    tail: bytes
    head_crc32: int
    crc32_positions: tuple[int, ...]

    def tail_with(self, payload_crc32: int) -> bytes:
        """Return the tail with the payload's CRC-32 filled in."""
        tail = bytearray(self.tail)
        for position in self.crc32_positions:
            _CRC32.pack_into(tail, position, payload_crc32)
        return bytes(tail)


class EnvelopeCache:
    """Envelopes by tensor form.

    Building one takes torch.save almost a millisecond, and a model has few distinct forms.
    `skip_data` is a prototype in torch: so the first use compares an envelope with a real
    torch.save.

    Parameters
    ----------
    checksum
        False writes zero for every CRC-32 in the archive, which is how torch itself says "not
        computed".
    """

    def __init__(self, *, checksum: bool) -> None:
        self._checksum = checksum
        self._envelopes: dict[TensorForm, Envelope] = {}
        self._options: tuple[object, ...] = ()
        self._checked = False

    def renew(self) -> None:
        """Forget everything if torch's options for archives have changed; once a save or load."""
        options = (
            serialization_config.save.storage_alignment,
            torch.serialization.get_crc32_options(),
        )
        if options != self._options:
            self._envelopes.clear()
            self._options = options

    def get(self, form: TensorForm) -> Envelope:
        """Return the envelope of a contiguous or otherwise dense tensor of this form.

        Raises
        ------
        UnsupportedError
            If torch.save cannot write such a tensor, or writes it in a layout that is not known
            here.
        """
        envelope = self._envelopes.get(form)
        if envelope is None:
            if not self._checked:
                _check_against_torch_save()
                self._checked = True
            envelope = _build(form, checksum=self._checksum)
            self._envelopes[form] = envelope
        return envelope


class _Recorder(io.RawIOBase):
    """A file that keeps what torch.save writes, with one hole where the payload was skipped."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, bytearray]] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence in (io.SEEK_SET, io.SEEK_CUR)
        self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def write(self, data: Buffer) -> int:
        content = bytes(memoryview(data))
        if not self.runs or self.runs[-1][0] + len(self.runs[-1][1]) != self._position:
            self.runs.append((self._position, bytearray()))
        self.runs[-1][1].extend(content)
        self._position += len(content)
        return len(content)


def _build(form: TensorForm, *, checksum: bool) -> Envelope:
    """Build the envelope of a form by a torch.save that skips the payload."""
    recorder = _Recorder()
    try:
        with FakeTensorMode():
            # A caller may have set another default device, which would stand in the archive.
            fake = torch.empty_strided(form.size, form.stride, dtype=form.dtype, device="cpu")
        with skip_data(materialize_fake_tensors=True):
            torch.save(fake, cast(IO[bytes], recorder))
    except (RuntimeError, KeyError, NotImplementedError) as error:
        raise UnsupportedError(f"torch.save cannot write {form.dtype} tensors: {error}") from error
    assert fake.untyped_storage().nbytes() == form.length, f"{form} is not dense"
    return _from_runs(recorder.runs, form=form, checksum=checksum)


def _from_runs(runs: list[tuple[int, bytearray]], *, form: TensorForm, checksum: bool) -> Envelope:
    """Split what torch.save wrote into head and tail, and find the payload's CRC-32 fields."""
    payload_length = form.length
    last_offset, last = runs[-1]
    entries = read_directory(bytes(last), tail_offset=last_offset)
    payload_entry = next(entry for entry in entries if entry.name.endswith(_PAYLOAD_ENTRY_SUFFIX))
    assert payload_entry.length == payload_length
    first = runs[0][1]
    header = memoryview(first)[payload_entry.header_offset :]
    head_length = payload_entry.header_offset + local_header_length(header)
    tail_offset = head_length + payload_length
    # One hole for a payload, none for an empty one: everything else has been written by torch.save.
    assert len(runs) == (2 if payload_length else 1)
    head = first[:head_length]
    tail = last[tail_offset - last_offset :]
    assert runs[0][0] == 0
    assert payload_length == 0 or (len(first), last_offset) == (head_length, tail_offset)
    positions = [payload_entry.crc32_position - tail_offset]
    if tail[:4] == _DESCRIPTOR_SIGNATURE:
        positions.insert(0, len(_DESCRIPTOR_SIGNATURE))
    if not checksum:
        _clear_crc32s(head, tail, entries, tail_offset=tail_offset)
    # The CRC-32 of nothing is zero, which is what an empty payload's fields hold already.
    fill = checksum and payload_length > 0
    return Envelope(
        form, bytes(head), bytes(tail), zlib.crc32(head), tuple(positions) if fill else ()
    )


def _clear_crc32s(
    head: bytearray, tail: bytearray, entries: list[ZipEntry], *, tail_offset: int
) -> None:
    """Write zero into every CRC-32 field, as torch.save does when it computes none."""
    for entry in entries:
        _CRC32.pack_into(tail, entry.crc32_position - tail_offset, 0)
        part, start = (head, 0) if entry.header_offset < len(head) else (tail, tail_offset)
        header = entry.header_offset - start
        descriptor = header + local_header_length(memoryview(part)[header:]) + entry.length
        if entry.name.endswith(_PAYLOAD_ENTRY_SUFFIX):
            part, descriptor = tail, 0
        if part[descriptor : descriptor + 4] == _DESCRIPTOR_SIGNATURE:
            _CRC32.pack_into(part, descriptor + 4, 0)


def _check_against_torch_save() -> None:
    """Compare one envelope with what a real torch.save writes around a real payload."""
    sample = torch.arange(7, dtype=torch.int16, device="cpu")
    archive = io.BytesIO()
    torch.save(sample, archive)
    written = archive.getvalue()
    payload = sample.numpy().tobytes()
    form = TensorForm(sample.dtype, tuple(sample.size()), sample.stride())
    envelope = _build(form, checksum=torch.serialization.get_crc32_options())
    ours = envelope.head + payload + envelope.tail_with(zlib.crc32(payload))
    # The serialization id hashes the records, the skipped payload among them: nothing reads it
    # back.
    entry = next(
        entry
        for entry in read_directory(written, tail_offset=0)
        if entry.name.endswith(_SERIALIZATION_ID_SUFFIX)
    )
    start = entry.header_offset
    id_end = start + local_header_length(written[start:]) + entry.length
    same_head = written[:start] == ours[:start]
    try:
        back = torch.load(io.BytesIO(ours), weights_only=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise UnsupportedError(
            f"torch {torch.__version__} cannot read back an archive: {error}"
        ) from error
    same_shape = len(written) == len(ours) and written[id_end:][:4] == ours[id_end:][:4]
    if not (same_head and same_shape and torch.equal(back, sample)):
        raise UnsupportedError(
            f"torch {torch.__version__} writes another archive than its skip_data does: this"
            " version of dcp_gds cannot place tensors for it"
        )
