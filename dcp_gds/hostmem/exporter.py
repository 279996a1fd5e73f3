"""Exporter: what a watch sees, served to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dcp_gds.errors import ConfigError, TransferError
from dcp_gds.hostmem.verdict import Verdict
from dcp_gds.hostmem.watch import HostMemoryWatch

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["serve"]

PREFIX = "dcp_gds"
# Everything below is reserved, and 0 would serve on a port that nobody knows.
PORT_MIN, PORT_MAX = 1, 65535


@contextmanager
def serve(watch: HostMemoryWatch, *, port: int, address: str = "127.0.0.1") -> Iterator[None]:
    """Serve the last sample of a watch, and its last save, until the block ends.

    Parameters
    ----------
    watch
        Sampled by whoever has started it; a scrape reads nothing anew.
    port, address
        Where to serve. Only this host can ask at the default address.

    Raises
    ------
    ConfigError
        If prometheus-client is not installed, or the port is none.
    TransferError
        If nothing can be served there.
    """
    if not PORT_MIN <= port <= PORT_MAX:
        raise ConfigError(f"the port is {port}; expected {PORT_MIN} to {PORT_MAX}")
    try:
        # An extra: who does not serve does not need it.
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"{error}; install what serves Prometheus: pip install 'dcp-gds[prometheus]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(_WatchCollector(watch))
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise TransferError(
            error.errno or 0, error.strerror or str(error), f"{address}:{port}"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _WatchCollector:
    """Makes metrics of a watch when Prometheus asks."""

    def __init__(self, watch: HostMemoryWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """The metrics of now."""
        from prometheus_client.core import (  # noqa: PLC0415
            CounterMetricFamily,
            GaugeMetricFamily,
        )

        samples = self._watch.samples
        if samples:
            for name, value in sorted(samples[-1].gauges.items()):
                yield GaugeMetricFamily(f"{PREFIX}_host_{name}", "Bytes now.", value=value)
            for name, value in sorted(samples[-1].counters.items()):
                text = "As the kernel counts it."
                yield CounterMetricFamily(f"{PREFIX}_host_{name}", text, value=value)
        yield CounterMetricFamily(
            f"{PREFIX}_saves", "Saves that have ended.", value=self._watch.saves
        )
        report = self._watch.last_report
        if report is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}_save_watched_seconds", "How long the last save took.", report.seconds
            )
            verdicts = GaugeMetricFamily(
                f"{PREFIX}_save_verdict", "1 for the last save's verdict.", labels=["verdict"]
            )
            for verdict in Verdict:
                verdicts.add_metric([verdict.value], float(verdict is report.verdict))
            yield verdicts
