"""MLflow tracking, through mlflow-skinny: a server, or a folder that `mlflow ui` reads."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from banyan.loggers import LoggedRun

TAG = "banyan.run"
STEP = "step"  # logged with the rest, which a server takes whole or not at all
_LONGEST = 6000  # characters of a parameter


@dataclass
class MLflow:
    """A run there carries the id of the run here as a tag; the recipe's settings are its parameters."""

    PACKAGE: ClassVar[tuple[str, str]] = ("mlflow", "mlflow-skinny==3.17.2")

    tracking_uri: str = ""
    """Server or folder; empty for MLFLOW_TRACKING_URI, or else the run's own folder."""
    experiment: str = "banyan"
    """Experiment that the run belongs to."""
    _client: Any = field(default=None, init=False, repr=False)
    _id: str = field(default="", init=False, repr=False)

    def begin(self, run: LoggedRun) -> int:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else a folder is refused
        from mlflow.tracking import MlflowClient

        uri = (
            self.tracking_uri
            or os.environ.get("MLFLOW_TRACKING_URI")
            or run.folder.resolve().as_uri()
        )
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(self.experiment)
        number = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(self.experiment)
        )
        found = self._client.search_runs([number], f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
        if not found:
            self._create(number, run)
            return -1
        self._id = found[0].info.run_id
        self._client.update_run(self._id, status="RUNNING")
        return int(found[0].data.metrics.get(STEP, -1))

    def _create(self, experiment: str, run: LoggedRun) -> None:
        from mlflow.entities import Param

        made = self._client.create_run(experiment, run_name=run.run_id, tags={TAG: run.run_id})
        self._id = made.info.run_id
        parameters = [Param(name, value[:_LONGEST]) for name, value in _flat(run.recipe)]
        for start in range(0, len(parameters), 100):
            self._client.log_batch(self._id, params=parameters[start : start + 100])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        held = {} if all(name.startswith("eval_") for name in metrics) else {STEP: float(step)}
        now = int(time.time() * 1000)
        told = [Metric(name, value, now, step) for name, value in {**metrics, **held}.items()]
        self._client.log_batch(self._id, metrics=told)

    def close(self) -> None:
        if self._id:
            self._client.set_terminated(self._id)


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A recipe's settings as `control.max_staleness` → "0"."""
    found: list[tuple[str, str]] = []
    for key, value in recipe.items():
        name = f"{prefix}{key}"
        found += _flat(value, f"{name}.") if isinstance(value, Mapping) else [(name, str(value))]
    return found
