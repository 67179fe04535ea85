"""reasoning-gym's scorers in the sandbox: gold answers, known break-outs, constant answers."""

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
    for dataset in (
        "countdown",
        "arc_agi",
        "chain_sum",
        "coin_flip",
        "complex_arithmetic",
        "game_of_life_halting",
    ):
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


# Plain text that the generators' own scorers reward, or compute the reward of: (dataset, answer
# made of its row).
FORGED = {
    "string_insertion": lambda row: "oracle_answer",
    "spiral_matrix": lambda row: "oracle_answer.split()",
    "binary_matrix": lambda row: "[line.split() for line in oracle_answer.split(chr(10))]",
    "n_queens": lambda row: (
        "[line.split() for line in [*entry['metadata']['valid_answers']][0].split(chr(10))]"
    ),
    "polynomial_multiplication": lambda row: f"expand({row['metadata']['polynomial_expr']})",
    "simple_integration": lambda row: (
        f"Integral({row['metadata']['integrand']}, {row['metadata']['variable']})"
    ),
    "intermediate_integration": lambda row: (
        f"Integral({row['metadata']['integrand']}, {row['metadata']['variable']})"
    ),
    "countdown": lambda row: (
        f"Integer({row['metadata']['target']})*(1 + 0*sum({row['metadata']['numbers']}))"
    ),
    "puzzle24": lambda row: "int(24.0)+0*sum([3,3,3,3])",
}


@pytest.mark.parametrize("dataset", EVAL)
async def test_plain_text_that_is_evaluated_earns_nothing(pool, dataset):
    for row in rows(dataset, 2):
        outcome = (await pool.score(SPEC, FORGED[dataset](row), row)).outcome
        assert outcome == Scored(0.0, {"refused": 1.0})


@pytest.mark.parametrize("dataset", EVAL)
async def test_right_answers_are_read_as_before(pool, dataset):
    """Gold answers of many rows, except the few that only repeat the question."""
    scored = [row for row in rows(dataset, 12) if "Integral(" not in row["answer"]]
    assert len(scored) >= 8
    for row in scored:
        assert (await pool.score(SPEC, str(row["answer"]), row)).outcome == Scored(1.0)


@pytest.mark.parametrize(
    ("dataset", "answer", "value"),
    [
        ("string_insertion", lambda row: repr(list(row["answer"])), 0.1),
        ("spiral_matrix", lambda row: repr(row["answer"].split()), 0.1),
        (
            "binary_matrix",
            lambda row: repr([line.split() for line in row["answer"].split("\n")]),
            0.1,
        ),
        ("n_queens", lambda row: repr([line.split() for line in row["answer"].split("\n")]), 0.5),
    ],
)
async def test_an_answer_as_a_python_list_still_counts_in_part(pool, dataset, answer, value):
    row = rows(dataset)[0]
    assert (await pool.score(SPEC, answer(row), row)).outcome == Scored(value)


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("countdown", lambda row: "9**9**9**9"),
        ("simple_integration", lambda row: "9**9**9**9 + C"),
        ("intermediate_integration", lambda row: "((9**99)**99)**99 + C"),
        ("polynomial_multiplication", lambda row: "(x + 1)**100000"),
        (
            "countdown",
            lambda row: (
                f"{row['metadata']['target']} # " + " ".join(map(str, row["metadata"]["numbers"]))
            ),
        ),
        (
            "puzzle24",
            lambda row: (
                "6*4*1*1" if sorted(row["metadata"]["numbers"]) != [1, 1, 4, 6] else "8*3*1*1"
            ),
        ),
        ("puzzle24", lambda row: row["answer"] + " + 1 - 1"),
        ("n_queens", lambda row: "(" * 5000),
        ("string_insertion", lambda row: "f'{oracle_answer}'"),
    ],
)
async def test_towers_comments_and_other_numbers_earn_nothing(pool, dataset, answer):
    row = rows(dataset)[0]
    outcome = (await pool.score(SPEC, answer(row), row)).outcome
    assert isinstance(outcome, Scored) and outcome.value <= 0.05


@pytest.mark.parametrize(
    ("dataset", "constants"),
    [
        ("puzzle24", ["6*4*1*1", "8*3*1*1", "24"]),
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
    ("dataset", "answer"),
    [
        ("prime_factorization", "()"),
        ("boxnet", "0"),
        ("coin_flip", "1e999"),
        ("game_of_life", "{}"),
    ],
)
async def test_an_answer_that_a_scorer_cannot_read_is_wrong_not_unscorable(pool, dataset, answer):
    outcome = (await pool.score(SPEC, answer, rows(dataset)[0])).outcome
    assert isinstance(outcome, Scored)
    assert outcome.value < 0.5


@pytest.mark.slow
async def test_a_row_of_something_else_is_unscorable(pool):
    outcome = (await pool.score(SPEC, "7", {"question": "3 + 4", "answer": 7})).outcome
    assert isinstance(outcome, Unscorable)
    assert "'dataset'" in outcome.reason
    row = {**rows("chain_sum")[0], "dataset": "no_such"}
    assert isinstance((await pool.score(SPEC, "7", row)).outcome, Unscorable)
