"""The learner's start: other ranks than 0 leave /metrics to it."""

import os
from unittest import mock

import pytest

from services.chassis.process import process
from services.chassis.process.telemetry.providers import LISTEN, TARGET
from services.learner import __main__ as entry


@pytest.mark.parametrize(("rank", "serves"), [("", True), ("0", True), ("1", False)])
def test_rank_0_alone_serves_metrics(
    rank: str, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "main", lambda service, run: None)
    environ = {LISTEN: "0.0.0.0:9464", TARGET: "learner.json"} | ({"RANK": rank} if rank else {})
    with mock.patch.dict(os.environ, environ):
        entry.main()
        assert (LISTEN in os.environ, TARGET in os.environ) == (serves, serves)
