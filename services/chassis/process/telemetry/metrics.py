"""Metrics, by names of banyan/runtime/telemetry_schema.py; others raise KeyError.

While nothing takes them they cost nothing. A label is one of few: what nodes, users and models word
as they like has no place in one.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from banyan.runtime.telemetry_schema import BUCKETS, METRICS, REASONS
from services.chassis.process.telemetry.providers import active
from services.chassis.process.telemetry.span import current, named

STALE_S = 60.0
"""Seconds after which a level that nobody stated again is left out: its run or node is gone."""
Read = Callable[[], Iterable[tuple[float, Mapping[str, str]]]]
_instruments: dict[str, Any] = {}
_levels: dict[str, dict[tuple[tuple[str, Any], ...], tuple[float, float]]] = {}
_lock = threading.Lock()


def count(name: str, n: int | float = 1, **attributes: Any) -> None:
    """Add to a counter."""
    unit, description = METRICS[name]
    if active.meter is not None:
        counter = _instrument(name, lambda: active.meter.create_counter(name, unit, description))
        counter.add(n, named(attributes))


def observe(name: str, value: float, **attributes: Any) -> None:
    """Record a value in a histogram, with the current span as its example."""
    unit, description = METRICS[name]
    if active.meter is not None:
        bounds = BUCKETS[name]
        histogram = _instrument(
            name,
            lambda: active.meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=bounds
            ),
        )
        histogram.record(value, named(attributes), current().context)


def level(name: str, value: float, **attributes: Any) -> None:
    """State how high something is now. Without another statement it is gone after STALE_S."""
    unit, description = METRICS[name]
    if active.meter is not None:
        key = tuple(sorted(named(attributes).items()))
        with _lock:
            _levels.setdefault(name, {})[key] = (value, time.monotonic())
        _instrument(
            name,
            lambda: active.meter.create_observable_gauge(
                name, [lambda options: _stated(name)], unit, description
            ),
        )


def watch(name: str, read: Read, rises: bool = False) -> None:
    """Have a value read whenever something takes metrics.

    read: gives values with their attributes, by the names of the schema
    rises: whether it is a total that only rises
    """
    unit, description = METRICS[name]
    if active.meter is not None:
        meter = active.meter
        make = meter.create_observable_counter if rises else meter.create_observable_gauge
        _instrument(name, lambda: make(name, [lambda options: _read(read)], unit, description))


def _read(read: Read) -> Iterator[Any]:
    from opentelemetry.metrics import Observation

    for value, attributes in read():
        yield Observation(value, named(dict(attributes)))


def _stated(name: str) -> Iterator[Any]:
    from opentelemetry.metrics import Observation

    since = time.monotonic() - STALE_S
    with _lock:
        levels = _levels[name] = {k: v for k, v in _levels[name].items() if v[1] >= since}
    for key, (value, _) in levels.items():
        yield Observation(value, dict(key))


def measuring() -> bool:
    """Return whether anything takes metrics."""
    return active.meter is not None


def kind_of(reason: str) -> str:
    """Return the kind of a reason, its first word if that is one of ours; else OTHER."""
    kind = reason.partition(":")[0]
    return kind if kind in REASONS else "OTHER"


def _instrument(name: str, make: Any) -> Any:
    if name not in _instruments:
        _instruments[name] = make()
    return _instruments[name]
