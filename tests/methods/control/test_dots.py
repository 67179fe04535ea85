"""DOTS (card 41): its numbers, its draws, and more groups that teach than with uniform choice."""

import numpy as np
import pytest

from banyan.errors import InvalidInput
from banyan.text.ngrams import embed
from methods.control.difficulty import Predictor, attended, calibrated
from methods.control.dots import Dots, log_weights
from methods.control.uniform import Uniform
from tests.gateway.simulated_rows import SimulatedRows

KINDS = {"add the small numbers": 0.98, "multiply the large numbers": 0.02, "sort these words": 0.5, "prove the lemma": 0.01}


def _world(curriculum, seed: int = 0, rows: int = 400) -> SimulatedRows:
    kinds = list(KINDS)
    texts = [f"{kinds[i % 4]} {i * 7919 % 1009} and {i * 104_729 % 997}" for i in range(rows)]
    return SimulatedRows(curriculum, texts, [KINDS[kinds[i % 4]] for i in range(rows)], seed=seed)


def test_the_weights_of_the_card() -> None:
    weights = np.exp(log_weights(np.array([0.500, 0.501, 0.550]), 0.5, 1e-3))
    assert weights == pytest.approx([1.0, 0.3679, 1.9e-22], rel=0.02)


def test_attention_and_calibration_by_hand() -> None:
    rewards = np.array([1.0, 0.0])
    like = np.array([[1.0, 1.0], [1.0, 0.9]])
    assert attended(like, rewards, 0.1) == pytest.approx([0.5, 1 / (1 + np.exp(-1.0))])
    assert calibrated(np.array([0.5, 0.9, 1.0]), 1.0, 0.0) == pytest.approx([0.5, 0.9, 1 - 1e-4])
    assert calibrated(np.array([0.9]), 2.0, 0.0) == pytest.approx([0.75])  # logit ln 9, halved: ln 3
    assert calibrated(np.array([0.5]), 3.0, 0.5) == pytest.approx([1 / (1 + np.exp(-0.5))])


def test_calibration_mends_what_attention_flattens() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 64)
    vectors = np.eye(2)[kind] + 0.3 * rng.random((64, 2))
    vectors /= np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    rewards = np.where(kind == 0, 0.95, 0.05)
    fitted = Predictor.fitted(vectors, rewards)
    raw = Predictor(vectors, rewards, 0.5)
    error = np.abs(fitted.predict(vectors) - rewards).mean(), np.abs(raw.predict(vectors) - rewards).mean()
    assert error[0] < 0.05 < error[1]
    assert 0.01 <= fitted.temperature <= 10 and abs(fitted.bias) < 1
    assert Predictor.fitted(vectors[:1], rewards[:1]).temperature == 1.0


def test_texts_that_share_words_lie_close_together() -> None:
    one, alike, other = embed("Sort these words: b a"), embed("sort these  words: d c"), embed("What is 12 * 9?")
    assert one.shape == (256,) and float(one @ one) == pytest.approx(1.0)
    assert one @ alike > 0.7 > one @ other + 0.3
    assert not embed("").any()


def test_a_cycle_begins_with_references_and_repeats_no_row() -> None:
    world = _world(Dots(references=8, mu=2))
    for _ in range(4):
        world.step()
    for cycle in (0, 1):
        given = world.allocations[32 * cycle : 32 * cycle + 32]
        assert len({a.row for a in given}) == 32
        assert [a.why for a in given[:8]] == [f"reference {i} of 8" for i in range(1, 9)]
    assert world.allocations[8].why == "drawn: no reference has a reward yet"
    assert "by 8 references of cycle 0" in world.allocations[16].why and "of cycle 0" in world.allocations[40].why
    assert "by 8 references of cycle 1" in world.allocations[48].why, "known once their batch is trained on"


def test_references_cost_no_groups_of_their_own() -> None:
    """Card 41, B = 512, μ = 2, σ = 1/2: the paper samples 256 / 2 + 256 = 384 groups a step in place of 512; references that
    are trained on too leave 256."""
    replayed, published = 256, 256 // 2 + 256
    world = SimulatedRows(Dots(), [f"row {i}" for i in range(600)], [0.5] * 600, batch=512 - replayed)
    for _ in range(2):
        world.step()
    assert len(world.allocations) / 2 == 256 < published == 384
    assert sum("reference" in a.why and " of 256" in a.why for a in world.allocations) == 256


def test_what_is_drawn_does_not_depend_on_how_many_are_filled_at_a_time() -> None:
    at_once, one_by_one = _world(Dots(references=8)), _world(Dots(references=8))
    for world in (at_once, one_by_one):
        for _ in range(3):
            world.step()
    rows = [a.row for a in at_once.fill(16)]
    assert [one_by_one.fill(1)[0].row for _ in range(16)] == rows
    assert at_once.ask(range(64, 100)) == one_by_one.ask(range(64, 100)), "across the end of a cycle"
    assert [a.row for a in _world(Dots(references=8), seed=1).fill(16)] != [
        a.row for a in _world(Dots(references=8)).fill(16)
    ]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_groups_have_a_spread_than_with_uniform_choice(seed: int) -> None:
    shares = []
    for curriculum in (Uniform(), Dots(references=8, tau=0.05)):
        world = _world(curriculum, seed)
        for _ in range(12):
            world.step()
        shares.append(np.mean([0 < mean < 1 for mean in world.means[16:]]))
    assert shares[1] > shares[0] + 0.2, shares
    assert shares[0] < 0.5 < shares[1], shares


def test_a_step_grows_three_quarters_of_a_whole_batch_where_the_other_half_is_replayed() -> None:
    """Card 41, B = 512, mu = 2, sigma = 0.5: 256 references a cycle and half a batch a step are 384 groups, not 512."""
    whole, mu, share = 512, 2, 0.5
    world = _world(Dots(references=256, mu=mu), rows=2000)
    world.batch = 256 // mu + int(share * whole)
    given = world.fill(mu * world.batch)
    references = sum(a.why.startswith("reference ") for a in given)
    assert (references, len(given) - references) == (256, mu * share * whole)
    assert len(given) / mu == 384 and world.ask(range(len(given), len(given) + 1))[0].why == "reference 1 of 256"


def test_a_task_that_is_smaller_than_a_cycle_comes_again() -> None:
    world = _world(Dots(references=8), rows=10)
    for _ in range(4):
        world.step()
    assert len(world.allocations) == 64 and {a.row for a in world.allocations} <= set(range(10))


@pytest.mark.parametrize("rows", [10, 3, 20])
@pytest.mark.parametrize("facts", [0, 1, 2])
def test_a_small_tasks_draws_do_not_depend_on_how_many_are_filled_at_a_time(rows: int, facts: int) -> None:
    given = []
    for at_a_time in (1, 3, 48):
        world = _world(Dots(references=8, mu=1), rows=rows)
        for _ in range(facts):
            world.step()
        for first in range(0, 48, at_a_time):
            world.fill(min(at_a_time, 48 - first))
        given.append([a.row for a in world.allocations])
    assert given[0] == given[1] == given[2]
    for cycle in range(3):
        chosen = given[0][16 * cycle + 8 : 16 * cycle + 16]
        assert len(set(chosen)) == min(8, rows), "each as often as the others"


def test_references_leave_something_to_choose() -> None:
    with pytest.raises(InvalidInput, match="32 references leave nothing of a cycle of 32 groups"):
        _world(Dots(references=32)).fill(1)
    with pytest.raises(ValueError, match="module:function"):
        Dots(embedding="bert")


def test_an_embedding_of_the_users_own() -> None:
    world = _world(Dots(references=8, embedding="tests.methods.control.test_dots:by_length"))
    world.step()
    world.step()
    assert "predicted success" in world.allocations[16].why


def by_length(text: str) -> list[float]:
    return [len(text), 1.0]
