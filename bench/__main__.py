"""Run every benchmark, each in a process of its own: memory and caches of one are no other's."""

from __future__ import annotations

import subprocess
import sys

QUESTIONS = ("crc", "save", "load", "small_tensors")


def main() -> int:
    """Pass the command line on to each; return 1 if one failed."""
    failed = False
    for question in QUESTIONS:
        command = [sys.executable, "-m", f"bench.{question}", *sys.argv[1:]]
        failed = subprocess.run(command, check=False).returncode != 0 or failed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
