"""`dcp-gds watch` says what the host went through, and ends with a status that scripts can use.

Method: the command on this host, whose counters of I/O move by what the test writes; a real
process that is watched until it ends; a real scrape.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from dcp_gds.cli.main import main
from dcp_gds.errors import ConfigError, TransferError
from dcp_gds.hostmem.exporter import serve
from dcp_gds.hostmem.runlog import read_run
from dcp_gds.hostmem.watch import HostMemoryWatch

Output = pytest.CaptureFixture[str]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_calm_host(capsys: Output) -> None:
    assert main(["watch", "--duration", "50ms", "--interval", "10ms"]) == 0
    out, err = capsys.readouterr()
    assert "verdict: " in out
    assert "available" in out
    assert err == ""


def test_a_counter_that_moves_is_a_failure(tmp_path: Path, capsys: Output) -> None:
    """Every major fault and every byte to the drives counts; direct writes go there at once."""
    command = ["watch", "--duration", "1s", "--fail-on", "drive_written_bytes", "--json"]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with (tmp_path / "file").open("wb") as file:
                file.write(bytes(1 << 20))
                os.fsync(file.fileno())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        status = main(command)
    finally:
        stop.set()
        writer.join()
    value = json.loads(capsys.readouterr().out)
    if "drive_written_bytes" not in value["deltas"]:
        pytest.skip("needs a drive that /proc/diskstats knows")
    assert status == 1
    assert value["failed_on"] == ["drive_written_bytes"]
    assert value["deltas"]["drive_written_bytes"] > 0


def test_what_cannot_happen_is_refused(capsys: Output) -> None:
    assert main(["watch", "--duration", "0s", "--fail-on", "pgscan_kswapt"]) == 2
    err = capsys.readouterr().err
    assert "pgscan_kswapt" in err
    assert "pgscan_kswapd" in err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--pid", str(2**22 + 1)], "there is no process"),
        (["--interval", "1ms"], "interval_s"),
        (["--interval", "often"], "--interval"),
        (["--duration", "-1"], "--duration"),
        (["--prometheus", "http"], "--prometheus"),
        (["--prometheus", "0"], "the port is 0"),
        (["--jsonl", "/proc/none"], "/proc/none"),
    ],
)
def test_wrong_options(options: list[str], text: str, capsys: Output) -> None:
    assert main(["watch", "--duration=0s", *options]) == 2
    assert text in capsys.readouterr().err


def test_it_ends_with_the_process(tmp_path: Path, capsys: Output) -> None:
    log = tmp_path / "run.jsonl"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        threading.Timer(0.3, process.stdin.close).start()
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        assert main(["watch", "--pid", str(process.pid), "--jsonl", str(log)]) == 0
        reaper.join()
    assert "processes" in capsys.readouterr().out
    run = read_run(log)
    assert run.samples[0].gauges["rss_bytes"] > 0
    assert "rss_bytes" not in run.samples[-1].gauges


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_verdict(number: signal.Signals) -> None:
    # Whoever runs the tests in the background may have SIGINT ignored, and children inherit that.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from dcp_gds.cli.main import main; sys.exit(main(['watch', '--json']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 60
            # Its thread is there when it watches.
            while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 2:
                assert time.monotonic() < deadline
            process.send_signal(number)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in {0, 1}
    assert json.loads(out)["verdict"]


def test_a_handler_of_the_caller_is_put_back(capsys: Output) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["watch", "--duration", "1ms"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_prometheus() -> None:
    port = free_port()
    with HostMemoryWatch() as watch:
        watch.begin_save()
        watch.end_save()
        with (
            serve(watch, port=port),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
        ):
            text = answer.read().decode()
    assert "dcp_gds_host_pgscan_kswapd_total " in text
    assert "dcp_gds_host_dirty_bytes " in text
    assert "dcp_gds_saves_total 1.0" in text
    assert 'dcp_gds_save_verdict{verdict="calm"} ' in text
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_that_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(TransferError, match=str(port)), serve(HostMemoryWatch(), port=port):
            pass


def test_prometheus_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match="prometheus"), serve(HostMemoryWatch(), port=9999):
        pass
