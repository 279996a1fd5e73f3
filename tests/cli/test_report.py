"""`dcp-gds report` makes a page that needs nothing else, and a picture, of any run.

Method: runs recorded by a real watch and made-up ones, cut and empty; the page is parsed.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dcp_gds.cli.main import main
from dcp_gds.hostmem.watch import HostMemoryWatch

Output = pytest.CaptureFixture[str]
PNG = b"\x89PNG\r\n"


class Page(HTMLParser):
    """What a page refers to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with HostMemoryWatch(jsonl=path) as watch:
        for _ in range(3):
            with watch.iteration():
                watch.begin_save()
                watch.end_save(engine="direct", path="/checkpoint")
    return path


def report(*runs: Path, output: Path) -> int:
    return main(["report", *map(str, runs), "--output", str(output)])


def test_a_page_and_a_picture(recorded: Path, tmp_path: Path, capsys: Output) -> None:
    output = tmp_path / "report"
    assert report(recorded, output=output) == 0
    assert capsys.readouterr().out.split() == [f"{output}.html", f"{output}.png"]
    picture = Path(f"{output}.png").read_bytes()
    assert picture.startswith(PNG)
    page = Page(Path(f"{output}.html").read_text())
    (source,) = page.references
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == picture
    assert "iterations in saves" in page.words
    assert "verdict" in page.words
    assert len(picture) < 300_000


def test_two_runs_are_beside_each_other(recorded: Path, tmp_path: Path) -> None:
    other = tmp_path / "<b>other.jsonl"
    other.write_bytes(recorded.read_bytes())
    assert report(recorded, other, output=tmp_path / "two") == 0
    text = (tmp_path / "two.html").read_text()
    assert re.search(r"<tr><th>verdict</th><td>[^<]+</td><td>[^<]+</td></tr>", text)
    assert "<b>" not in text


def test_a_run_that_was_cut_off(recorded: Path, tmp_path: Path) -> None:
    recorded.write_bytes(recorded.read_bytes()[:-20])
    assert report(recorded, output=tmp_path / "cut") == 0
    assert "lines that could not be read" in (tmp_path / "cut.html").read_text()


def test_a_host_that_told_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    line = {"kind": "sample", "time_s": 1.0, "counters": {}, "gauges": {}}
    run.write_text(json.dumps(line) + "\n")
    assert report(run, output=tmp_path / "nothing") == 0


@pytest.mark.parametrize("text", ["", "not json\n", '{"kind":"host"}\n'])
def test_what_is_no_run(text: str, tmp_path: Path, capsys: Output) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text(text)
    assert report(run, output=tmp_path / "none") == 2
    assert "holds no samples" in capsys.readouterr().err
    assert not (tmp_path / "none.html").exists()


def test_files_that_cannot_be_read_or_written(
    recorded: Path, tmp_path: Path, capsys: Output
) -> None:
    assert report(tmp_path / "gone.jsonl", output=tmp_path / "x") == 2
    assert "gone.jsonl" in capsys.readouterr().err
    assert report(recorded, output=tmp_path / "none/x") == 2
    assert "none/x.html" in capsys.readouterr().err


def test_drawing_is_an_extra(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert report(recorded, output=tmp_path / "x") == 2
    assert "dcp-gds[report]" in capsys.readouterr().err
