"""Measurements of OpenTelemetry as Prometheus reads them. Pure.

One rule of names: dots are underscores, the unit is a suffix (`_seconds`, `_bytes`; none for shares
and for what is only counted), counters end in `_total`; labels lose their `banyan.`. So
`banyan.score.duration` in s with `banyan.scorer` is `banyan_score_duration_seconds{scorer=…}`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.samples import Exemplar

_UNITS = {"s": "seconds", "By": "bytes"}
_RESOURCE = {"service.name": "service", "banyan.run": "run"}
"""Attributes of the resource that are labels of every sample."""


def families(data: Any) -> Iterator[Metric]:
    """Yield Prometheus' families of OpenTelemetry's MetricsData; nothing for None."""
    for resource in data.resource_metrics if data is not None else ():
        fixed = {
            label: str(resource.resource.attributes[name])
            for name, label in _RESOURCE.items()
            if name in resource.resource.attributes
        }
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield _family(metric, fixed)


def family_name(name: str, unit: str) -> str:
    """Return the name of a metric's family, without `_total`."""
    suffix = _UNITS.get(unit, "")
    base = name.replace(".", "_")
    return base if not suffix or base.endswith(f"_{suffix}") else f"{base}_{suffix}"


def label_name(name: str) -> str:
    """Return the label of an attribute."""
    return name.removeprefix("banyan.").replace(".", "_")


def _family(metric: Any, fixed: Mapping[str, str]) -> Metric:
    data, name = metric.data, family_name(metric.name, metric.unit or "")
    points = [(_labels(point.attributes, fixed), point) for point in data.data_points]
    names = sorted({label for labels, _ in points for label in labels})
    if hasattr(data, "is_monotonic") and data.is_monotonic:
        counter = CounterMetricFamily(name, metric.description, labels=names)
        for labels, point in points:
            counter.add_metric(_values(names, labels), point.value)
        return counter
    if hasattr(data.data_points[0], "bucket_counts") if data.data_points else False:
        histogram = HistogramMetricFamily(name, metric.description, labels=names)
        for labels, point in points:
            histogram.add_metric(_values(names, labels), _buckets(point), point.sum)
        return histogram
    gauge = GaugeMetricFamily(name, metric.description, labels=names)
    for labels, point in points:
        gauge.add_metric(_values(names, labels), point.value)
    return gauge


def _labels(attributes: Mapping[str, Any] | None, fixed: Mapping[str, str]) -> dict[str, str]:
    return {**fixed, **{label_name(k): str(v) for k, v in (attributes or {}).items()}}


def _values(names: list[str], labels: Mapping[str, str]) -> list[str]:
    return [labels.get(name, "") for name in names]


def _buckets(point: Any) -> list[Any]:
    """Return pairs of upper bound and cumulative count, or triples with an exemplar."""
    bounds = [*map(str, map(float, point.explicit_bounds)), "+Inf"]
    limits = [*point.explicit_bounds, float("inf")]
    latest: dict[int, Any] = {}
    for exemplar in sorted(point.exemplars or (), key=lambda e: e.time_unix_nano):
        if exemplar.trace_id:
            latest[next(i for i, limit in enumerate(limits) if exemplar.value <= limit)] = exemplar
    buckets: list[Any] = []
    total = 0
    for i, (bound, count) in enumerate(zip(bounds, point.bucket_counts, strict=True)):
        total += count
        buckets.append((bound, total, _exemplar(latest[i])) if i in latest else (bound, total))
    return buckets


def _exemplar(exemplar: Any) -> Exemplar:
    labels = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
    return Exemplar(labels, exemplar.value, exemplar.time_unix_nano / 1e9)
