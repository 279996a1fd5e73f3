"""Libraries: the simulated libcuda and libcufile, compiled when tests run."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Libraries", "build"]

SOURCES = Path(__file__).parent
# Optimised a little: copies are memcpy's, and the compiler takes a second.
FLAGS = (
    *("-std=gnu17", "-O1", "-fPIC", "-shared", "-pthread"),
    *("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"),
)
CUDA_SOURCES = (
    *("calls.c", "spans.c", "memory.c", "host.c"),
    *("context.c", "stream.c", "copy.c"),
)
CUFILE_SOURCES = ("cufile.c", "cufile_stream.c")


@dataclass(frozen=True, slots=True)
class Libraries:
    """Where the two libraries are. Their names are those that kvikio asks the loader for."""

    cuda: Path
    cufile: Path


def build(directory: Path) -> Libraries:
    """Compile both into `directory`, which has to be there, in about a second."""
    libraries = Libraries(directory / "libcuda.so.1", directory / "libcufile.so.0")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests need a C compiler"
    _compile(compiler, libraries.cuda, *(str(SOURCES / name) for name in CUDA_SOURCES))
    _compile(
        compiler,
        libraries.cufile,
        *(str(SOURCES / name) for name in CUFILE_SOURCES),
        str(libraries.cuda),
        "-Wl,-rpath,$ORIGIN",
    )
    return libraries


def _compile(compiler: str, target: Path, *arguments: str) -> None:
    """Compile one library, with its file name as its SONAME."""
    command = [compiler, *FLAGS, f"-Wl,-soname,{target.name}", "-o", str(target), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
