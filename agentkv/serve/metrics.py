"""What the server measures, for Prometheus."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentkv.serve.engine import Engine
from agentkv.serve.reuse import How

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of requests, and what the engine says when it is asked."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._engine = engine
        self._requests = Counter(
            "agentkv_requests",
            "Answered requests, by path and HTTP status",
            ["path", "status"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "agentkv_first_token_seconds",
            "Seconds from a request to the first token of its reply",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
            registry=self._registry,
        )
        self._registry.register(_EngineCollector(engine))

    def count(self, path: str, status: int) -> None:
        """Count an answered request."""
        self._requests.labels(path, str(status)).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        for seconds in self._engine.counters.take_first_token_s():
            self._first_token.observe(seconds)
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine, counters = self._engine, self._engine.counters
        for name, text, count in (
            (
                "prompt_tokens",
                "Tokens before replies, those kept from earlier requests included",
                counters.prompt_tokens,
            ),
            (
                "cached_tokens",
                "Tokens before replies that were not read again",
                counters.cached_tokens,
            ),
            ("completion_tokens", "Tokens of replies", counters.written_tokens),
            (
                "prompt_seconds",
                "Seconds from requests until their prompts were read, summed over requests",
                counters.read_s,
            ),
            (
                "completion_seconds",
                "Seconds in which replies were written, summed over replies",
                counters.write_s,
            ),
            (
                "forgotten_tokens",
                "Tokens that sessions had read and lost to later requests",
                counters.forgotten_tokens,
            ),
            ("session_spills", "Sessions put on disk", counters.spills),
            ("session_loads", "Sessions brought back from disk", counters.loads),
        ):
            yield CounterMetricFamily(f"agentkv_{name}", text, count)
        prompts = CounterMetricFamily(
            "agentkv_prompts", "Answered prompts, by how they found their session", labels=["reuse"]
        )
        for how in get_args(How):
            prompts.add_metric([how], counters.reuses[how])
        yield prompts
        for name, text, value in (
            (
                "completion_tokens_per_second",
                "Tokens of replies per second of writing, per reply, since the start",
                counters.written_tokens / counters.write_s if counters.write_s else 0.0,
            ),
            ("requests_running", "Replies in progress", engine.num_running),
            ("requests_waiting", "Requests that wait for a place", engine.num_waiting),
            ("sessions", "Sessions, on disk too", counters.sessions),
            ("sessions_in_memory", "Sessions in memory", counters.sessions_in_memory),
            (
                "session_bytes",
                "Bytes of all sessions in memory, snapshots included",
                counters.session_bytes,
            ),
            ("session_peak_bytes", "The most bytes that the sessions had", counters.peak_bytes),
        ):
            yield GaugeMetricFamily(f"agentkv_{name}", text, value)
