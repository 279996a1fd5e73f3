"""Progress: a bar for the bytes of a save, fed by the writer's `progress` callback."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

__all__ = ["SaveProgress"]


class SaveProgress:
    """A bar that lives while it is entered; calling it moves it.

    `GDSWriter(path, progress=bar)` does for a process that writes by itself. The callback runs on
    the thread that saves, which rich allows. Nothing is printed where the console is no terminal.

    Parameters
    ----------
    console
        Where to draw.
    title
        What stands before the bar.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        # The total is not known before the first save has been laid out.
        self._task = self._progress.add_task(title, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Show how far the save at hand is; a smaller number than before is a new save."""
        self._progress.update(self._task, completed=done_bytes, total=total_bytes)

    def rename(self, title: str) -> None:
        """Change what stands before the bar."""
        self._progress.update(self._task, description=title)

    @property
    def shown(self) -> tuple[str, int, int | None]:
        """Title, bytes done and bytes in total, as drawn last; the total is None before a save."""
        task = self._progress.tasks[self._task]
        total = None if task.total is None else int(task.total)
        return task.description, int(task.completed), total
