"""The rank at fault for a broken collective, by heartbeats; ranks by environment."""

import pytest
from torch.distributed import HashStore

from banyan.errors import InvalidInput
from services.learner.training.distributed.heartbeat import Beat, suspects
from services.learner.training.distributed.rank_env import RankPlace, read_rank
from services.learner.training.distributed.rank_group import RankGroup
from services.learner.training.distributed.rank_loss import RankLost

HERE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_a_rank_without_a_sign_of_life_is_named() -> None:
    before = {0: Beat(5, 7, "step 3"), 1: Beat(5, 7, "step 3"), 2: Beat(9, 7, "step 3")}
    after = {0: Beat(9, 7, "step 3"), 1: Beat(5, 7, "step 3"), 2: Beat(13, 7, "step 3")}
    assert suspects(before, after, 0) == "rank 1 gives no sign of life (last at step 3)"


def test_a_rank_that_failed_is_named_with_its_cause() -> None:
    before = {0: Beat(5), 1: Beat(5, failure="MemoryError: 4 GiB")}
    assert suspects(before, {0: Beat(9), 1: before[1]}, 0) == "rank 1 failed: MemoryError: 4 GiB"


def test_a_rank_that_lives_and_is_late_is_named() -> None:
    before = {0: Beat(5, 8, "step 3"), 1: Beat(5, 4, "a row"), 2: Beat(5, 8, "step 3")}
    after = {
        rank: Beat(beat.count + 4, beat.passes, beat.activity) for rank, beat in before.items()
    }
    assert suspects(before, after, 0) == "rank 1 is only at a row, pass 4"
    assert suspects(before, after, 1) == "rank 1 itself is behind the others"


def test_a_rank_by_its_environment() -> None:
    assert read_rank({}) is None
    assert read_rank({"RANK": "1", "WORLD_SIZE": "2", **HERE}) == RankPlace(1, 2)


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "1"},
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2", **HERE},
        {"RANK": "0", "WORLD_SIZE": "2"},
    ],
)
def test_an_environment_of_nonsense_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="torchrun"):
        read_rank(environ)


class _Alive:
    """A heartbeat of ranks that live."""

    def __init__(self) -> None:
        self.count = 0

    def set_activity(self, activity: str) -> None:
        pass

    def read(self) -> dict[int, Beat]:
        self.count += 1
        return {rank: Beat(self.count, activity="loading the model") for rank in range(2)}


def test_a_rank_that_lives_but_never_ends_loading_is_waited_for_until_the_deadline() -> None:
    world = RankGroup.__new__(RankGroup)  # without a process group: only store and heartbeat
    world.rank, world.size, world.timeout_s, world.load_s = 0, 2, 60.0, 0.1
    world._store, world.heartbeat = HashStore(), _Alive()  # type: ignore[assignment]
    with pytest.raises(
        RankLost, match=r"rank 1 lives, and is still at loading the model, 0 s after rank 0"
    ):
        world.meet("done/1")
    world._store.set("done/2/1", "-")
    world.meet("done/2")
