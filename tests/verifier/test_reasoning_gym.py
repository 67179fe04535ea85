"""reasoning-gym's scorers in the sandbox: gold answers, known break-outs, and constants that must not pay."""

from pathlib import Path

import pytest
import pytest_asyncio

from banyan.plugins import Scored, Unscorable
from banyan.recipe import Task
from services.gateway.tasks import load
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec

SPEC = ScorerSpec("reasoning-gym", {})
# Scorers that evaluate the answer as code.
EVAL = [
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
]


# One warm child for all: importing the package takes a second.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    pool = Pool(Limits(deadline_s=20.0))
    yield pool
    await pool.close()


def rows(dataset, size=2):
    return load(Task(name="reasoning-gym", dataset=dataset, size=size, seed=5), Path("."))


async def test_gold_answers_score_1_wrong_ones_less(pool):
    for dataset in ("countdown", "arc_agi", "chain_sum", "coin_flip", "complex_arithmetic", "game_of_life_halting"):
        row = rows(dataset)[0]
        assert (await pool.score(SPEC, str(row["answer"]), row)).outcome == Scored(1.0)
        tagged = f"I think <answer>{row['answer']}</answer>"
        assert (await pool.score(SPEC, tagged, row)).outcome == Scored(1.0)
        assert (await pool.score(SPEC, "no idea", row)).outcome.value < 0.5


async def test_answers_that_are_code_touch_nothing(pool, tmp_path):
    tmp_path.chmod(0o777)
    tmp_path.parent.chmod(0o755)
    for dataset in EVAL:
        row = rows(dataset)[0]
        for mark, code in _break_outs(tmp_path / dataset):
            outcome = (await pool.score(SPEC, code, row)).outcome
            assert not isinstance(outcome, Scored) or outcome.value < 0.5, dataset
            assert not mark.exists(), dataset


def _break_outs(stem):
    shell, file = Path(f"{stem}-shell"), Path(f"{stem}-file")
    yield shell, f"__import__('os').system('touch {shell}')"
    yield file, f"__import__('builtins').open('{file}', 'w')"


@pytest.mark.parametrize(
    ("dataset", "constants"),
    [
        ("coin_flip", ["0", "0.", "1"]),
        ("complex_arithmetic", ["nan", "NaN + nani", "inf"]),
        ("game_of_life_halting", ["zzz", "0", "[]"]),
    ],
)
async def test_a_constant_answer_pays_nothing(pool, dataset, constants):
    for constant in constants:
        for row in rows(dataset, 4):
            assert (await pool.score(SPEC, constant, row)).outcome.value < 0.5


@pytest.mark.parametrize(
    ("dataset", "answer"), [("prime_factorization", "()"), ("boxnet", "0"), ("coin_flip", "1e999"), ("game_of_life", "{}")]
)
async def test_an_answer_that_a_scorer_cannot_read_is_wrong_not_unscorable(pool, dataset, answer):
    outcome = (await pool.score(SPEC, answer, rows(dataset)[0])).outcome
    assert isinstance(outcome, Scored)
    assert outcome.value < 0.5


async def test_a_row_of_something_else_is_unscorable(pool):
    outcome = (await pool.score(SPEC, "7", {"question": "3 + 4", "answer": 7})).outcome
    assert isinstance(outcome, Unscorable)
    assert "'dataset'" in outcome.reason
    row = {**rows("chain_sum")[0], "dataset": "no_such"}
    assert isinstance((await pool.score(SPEC, "7", row)).outcome, Unscorable)


async def test_an_answer_that_computes_for_ever_times_out(monkeypatch):
    pool = Pool(Limits(deadline_s=2.0))
    try:
        outcome = (await pool.score(SPEC, "9**9**9**9", rows("countdown")[0])).outcome
        assert isinstance(outcome, Unscorable)
        assert outcome.reason.startswith(("TIMEOUT", "EXCEPTION: MemoryError"))
    finally:
        await pool.close()
