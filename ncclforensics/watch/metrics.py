"""Serve the state of a watch to Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ncclforensics.watch.watch import Watch

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PREFIX = "ncclforensics_watch"


class WatchCollector:
    """The metrics of one watch, computed when they are asked for."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; times are seconds since the epoch."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        watch = self._watch
        yield GaugeMetricFamily(f"{PREFIX}_files", "Files that are followed.", len(watch.files.names))
        yield CounterMetricFamily(f"{PREFIX}_calls", "Lines of calls since the watch began.", watch.calls)
        yield CounterMetricFamily(f"{PREFIX}_warnings", "Warnings of NCCL since the watch began.", watch.warnings)
        lagging = len(watch.logs_behind())
        yield GaugeMetricFamily(f"{PREFIX}_logs_behind", "Logs without calls while others go on.", lagging)
        if watch.rhythm is not None:
            last, allowed = watch.rhythm.last, watch.rhythm.allowed
            yield GaugeMetricFamily(f"{PREFIX}_last_call_timestamp_seconds", "When the last call was seen.", last)
            yield GaugeMetricFamily(f"{PREFIX}_allowed_silence_seconds", "Time without calls that is normal.", allowed)
        text = "Seconds of a round of calls in which the others may have waited for this log."
        stragglers = GaugeMetricFamily(f"{PREFIX}_straggler_seconds", text, labels=["log"])
        for log, straggler in list(watch.stragglers.items()):
            stragglers.add_metric([log], straggler.waited)
        yield stragglers
        ratio = max(watch.step_times.slower.values(), default=1.0)
        yield GaugeMetricFamily(f"{PREFIX}_step_ratio", "How many times as long as before steps take.", ratio)
        verdict = GaugeMetricFamily(f"{PREFIX}_verdict", "The latest verdict.", labels=["verdict", "certainty"])
        if (look := watch.look) is not None:
            verdict.add_metric([look.answer.verdict, look.answer.certainty], 1)
        yield verdict


def serve(watch: Watch, port: int, address: str) -> Callable[[], None]:
    """Serve /metrics in a thread; return what stops it.

    Raises OSError if the port cannot be used, ModuleNotFoundError without prometheus_client.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(WatchCollector(watch))
    server, thread = start_http_server(port, address, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
