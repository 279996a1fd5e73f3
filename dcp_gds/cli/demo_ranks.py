"""Demo ranks: rank processes of one run, their events, and their end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from dcp_gds.cli.demo_events import Event, RankFailed, parse_event
from dcp_gds.cli.demo_settings import DemoSettings, RankTask, WriterName
from dcp_gds.errors import DcpGdsError

__all__ = ["DemoRanks"]

# Longer than the ranks' own limit on a collective, so that they can say what is wrong.
SILENCE_SECONDS_MAX = 90.0
# A process that closed its pipe is about to end.
EXIT_SECONDS_MAX = 10.0
READ_BYTES = 1 << 16


class DemoRanks:
    """The rank processes of a run. Leaving the `with` block ends them, whatever happened.

    Parameters
    ----------
    settings, world_size, writers, alone_saves, resume_from
        As in `RankTask`.
    directory
        Where the run's checkpoints go; exists and is used by no other run.
    """

    def __init__(
        self,
        settings: DemoSettings,
        *,
        world_size: int,
        directory: Path,
        writers: tuple[WriterName, ...],
        alone_saves: int = 0,
        resume_from: Path | None = None,
    ) -> None:
        self._store = directory / "store"
        self._output = directory / "output"
        self._tasks = [
            RankTask(
                settings=settings,
                rank=rank,
                world_size=world_size,
                store=str(self._store),
                directory=str(directory),
                writers=writers,
                alone_saves=alone_saves,
                resume_from=None if resume_from is None else str(resume_from),
            )
            for rank in range(world_size)
        ]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._fd = -1

    def __enter__(self) -> Self:
        self._fd, there = os.pipe()
        try:
            with self._output.open("wb") as output:
                for task in self._tasks:
                    self._processes.append(_start(task, fd=there, output=output))
        except BaseException:
            self.close()
            raise
        finally:
            # The pipe ends with the last rank only if this process does not hold it open.
            os.close(there)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def events(self) -> Iterator[Event]:
        """The events of all ranks as they come, until the last rank has ended.

        Raises
        ------
        DcpGdsError
            If a rank fails, or none says anything for too long.
        """
        rest = b""
        while True:
            readable, _, _ = select.select([self._fd], [], [], SILENCE_SECONDS_MAX)
            if not readable:
                raise DcpGdsError(f"the ranks said nothing for {SILENCE_SECONDS_MAX:.0f} s")
            data = os.read(self._fd, READ_BYTES)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                event = parse_event(line.decode())
                if isinstance(event, RankFailed):
                    raise DcpGdsError(f"rank {event.rank} of the demo failed: {event.text}")
                yield event

    def kill(self) -> list[int]:
        """Send SIGKILL to every rank and return their exit codes: -9 for those it ended."""
        for process in self._processes:
            process.kill()
        return [process.wait() for process in self._processes]

    def finish(self) -> str:
        """Wait for the ranks to end and return what they wrote on stderr, usually nothing.

        Raises
        ------
        DcpGdsError
            If one ended with an error.
        """
        for rank, process in enumerate(self._processes):
            try:
                code = process.wait(EXIT_SECONDS_MAX)
            except subprocess.TimeoutExpired as error:
                raise DcpGdsError(f"rank {rank} of the demo does not end") from error
            if code != 0:
                raise DcpGdsError(f"rank {rank} of the demo ended with code {code}: {self._text()}")
        return self._text()

    def close(self) -> None:
        """End the ranks that still run, and reap them."""
        self.kill()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for path in (self._store, self._output):
            path.unlink(missing_ok=True)

    def _text(self) -> str:
        """What the ranks have written on stdout and stderr."""
        return self._output.read_text(errors="replace").strip()


def _start(task: RankTask, *, fd: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a rank."""
    # The rank imports what this process imports, from the same places.
    paths = [path or str(Path.cwd()) for path in sys.path]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dcp_gds.cli.demo_rank", task.to_json(), str(fd)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # Ctrl-C is for this process, which then ends its ranks.
        start_new_session=True,
    )
