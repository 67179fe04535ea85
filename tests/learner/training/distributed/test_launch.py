"""The number of ranks: of the recipe, and of torchrun."""

import pytest
from pydantic import ValidationError

from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from services.learner.settings import LearnerSettings
from services.learner.training.distributed import launch
from services.learner.training.trainer_thread import TorchThread
from tests.learner import rig
from tests.learner.training.distributed.conftest import recipe

SETTINGS = LearnerSettings(run=rig.RUN)


def test_one_rank_is_a_plain_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    thread = launch.torch_thread(rig.recipe(1), SETTINGS)
    thread.done()
    assert type(thread) is TorchThread


def test_a_deterministic_run_has_the_ranks_of_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=r"started 3 ranks.*learner_ranks: 2"):
        launch.torch_thread(recipe(), SETTINGS)


@pytest.mark.parametrize("ranks", [0, -1, 1.5, "2"])
def test_a_bad_number_of_ranks_is_refused(ranks: object) -> None:
    data = recipe().model_dump(mode="json")
    data["resources"]["learner_ranks"] = ranks
    with pytest.raises(ValidationError, match="learner_ranks"):
        Recipe.model_validate(data)
