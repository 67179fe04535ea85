"""MLflow tracking, through mlflow-skinny: a server, or a folder that `mlflow ui` reads."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from banyan.loggers import LoggedRun
from banyan.loggers.completions import NAME, Completion, table
from banyan.loggers.tags import GROUPED, PLAIN, named

TAG = "banyan.run"
TAGS_TAG = "banyan.tags"  # names of metrics; a run without it has plain ones
TABLES_TAG = "mlflow.loggedArtifacts"  # by which MLflow shows an artifact as a table
STEP = "step"  # logged with the rest, which a server accepts whole or not at all
_LONGEST = 6000  # characters of a parameter
_PARAMETERS_AT_ONCE = 100
_LONGEST_TAG = 5000  # characters


@dataclass
class MLflow:
    """A run of MLflow with the run's id as a tag, and the recipe's settings as parameters."""

    PACKAGE: ClassVar[tuple[str, str]] = ("mlflow", "mlflow-skinny==3.17.2")

    tracking_uri: str = ""
    """Server or folder; empty for MLFLOW_TRACKING_URI, or else the run's own folder."""
    experiment: str = "banyan"
    """Experiment that the run belongs to."""
    tags: str = GROUPED
    """Names of metrics: grouped (`reward/mean`) or plain (`reward`)."""
    completions: int = 0
    """Samples of a step's completions, as a table."""
    completions_every: int = 1
    """Steps between sampled steps."""
    _tables: list[dict[str, str]] = field(default_factory=list, init=False, repr=False)
    _client: Any = field(default=None, init=False, repr=False)
    _id: str = field(default="", init=False, repr=False)

    def begin(self, run: LoggedRun) -> int:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else a folder is refused
        from mlflow.tracking import MlflowClient

        default = os.environ.get("MLFLOW_TRACKING_URI") or run.folder.resolve().as_uri()
        self._client = MlflowClient(tracking_uri=self.tracking_uri or default)
        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment:
            number = experiment.experiment_id
        else:
            number = self._client.create_experiment(self.experiment)
        self.tags = run.tags
        tagged = f"tags.`{TAG}` = '{run.run_id}'"
        runs = self._client.search_runs([number], tagged, max_results=1)
        if not runs:
            self._create(number, run)
            return -1
        self._id = runs[0].info.run_id
        self._client.update_run(self._id, status="RUNNING")
        self.tags = runs[0].data.tags.get(TAGS_TAG, PLAIN)
        self._tables = json.loads(runs[0].data.tags.get(TABLES_TAG, "[]"))
        return int(runs[0].data.metrics.get(STEP, -1))

    def _create(self, experiment: str, run: LoggedRun) -> None:
        from mlflow.entities import Param

        tags = {TAG: run.run_id, TAGS_TAG: self.tags}
        created = self._client.create_run(experiment, run_name=run.run_id, tags=tags)
        self._id = created.info.run_id
        parameters = [Param(name, value[:_LONGEST]) for name, value in _flat(run.recipe)]
        for start in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            part = parameters[start : start + _PARAMETERS_AT_ONCE]
            self._client.log_batch(self._id, params=part)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        values = named(metrics, self.tags)
        if not all(name.startswith("eval_") for name in metrics):
            values[STEP] = float(step)
        now_ms = int(time.time() * 1000)
        batch = [Metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=batch)

    def log_completions(self, step: int, rows: Sequence[Completion]) -> None:
        """Write a table as an artifact of the step, in the form of MLflow's `log_table`.

        That itself needs pandas, which mlflow-skinny does without.
        """
        columns, data = table(rows)
        path = f"{NAME}/step-{step:08}.json"
        text = json.dumps({"columns": columns, "data": data}, allow_nan=False)
        self._client.log_text(self._id, text, path)
        self._tables.append({"path": path, "type": "table"})
        while len(listed := json.dumps(self._tables)) > _LONGEST_TAG:
            del self._tables[0]  # it stays an artifact
        self._client.set_tag(self._id, TABLES_TAG, listed)

    def close(self) -> None:
        if self._id:
            self._client.set_terminated(self._id)


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return a recipe's settings by dotted name: `control.max_staleness` → "0"."""
    settings: list[tuple[str, str]] = []
    for key, value in recipe.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            settings += _flat(value, f"{name}.")
        else:
            settings.append((name, str(value)))
    return settings
