"""Joined nodes whose paths act: their trees are trained on beside our own, and survive them."""

import signal
from pathlib import Path
from typing import Any

import pytest

from banyan.segment import Finish, Kind
from banyan.v1 import tree_pb2
from tests.system.joining import Training, joined, training
from tests.system.tiny import torch_recipe

END = 1 + sorted(set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))).index(ord("e"))
CLASS = """
import time


class Letters:
    def reset(self, row):
        self.said = ""

    def step(self, action):
        time.sleep({sleep})
        self.said += str(len(action)) + " "
        return self.said, len(action) % 5 / 4, False
"""
CALCULATOR = {"name": "calculator", "settings": {"begin": "q", "end": "e"}, "turns": 2}
OWN = {"name": "letters:Letters", "end": "e", "turns": 3}


def acting(folder: Path, environment: dict[str, Any], sleep: float = 0.0) -> dict[str, Any]:
    """Return a run of random weights that end an action now and then."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    data = torch_recipe(folder / "made")
    (folder / "letters.py").write_text(CLASS.format(sleep=sleep))
    (folder / "made" / "any_reward.py").rename(folder / "any_reward.py")
    (folder / "made" / "rows.jsonl").rename(folder / "rows.jsonl")
    scorer = "environment" if ":" in environment["name"] else "any_reward:reward"
    return data | {
        "task": {"name": "file", "path": str(folder / "rows.jsonl"), "holdout": 0.0},
        "filter": [{"name": scorer}],
        "generate": {
            "policy": "turns",
            "settings": {"starts": 2, "branches": 2, "depth": 1},
            "max_new_tokens": 48,
            "logit_bias": {END: 3.0},
        },
        "allow_truncated_sampling": True,
        "environment": environment,
        "eval": {"samples": 0, "max_rows": 4},
    }


def answers(run: Training, of_tree: str) -> list[dict[str, Any]]:
    """Return answers with what their receipts say, of trees that the condition takes."""
    found = run.rows(
        "select s.id, s.parent, s.tree_id, s.receipt, s.text, s.claim_epoch from segments s"
        f" join trees t on t.tree_id = s.tree_id where s.kind = {int(Kind.TOOL)} and {of_tree}"
    )
    names = ("id", "parent", "tree_id", "receipt", "text", "epoch")
    rows = [dict(zip(names, row, strict=True)) for row in found]
    return [row | {"receipt": tree_pb2.Receipt.FromString(row["receipt"])} for row in rows]


def chained(run: Training, found: list[dict[str, Any]]) -> int:
    """Check that each answer found the state that the one above it left, and the first ones of a
    tree the same; return the number of those with one above.
    """
    first = dict[bytes, bytes]()
    parents = dict(run.rows("select id, parent from segments"))
    by_id = {row["id"]: row for row in found}
    below = 0
    for row in found:
        at = row["parent"]
        while at and at not in by_id:
            at = parents[at]
        before = row["receipt"].observation.state_before
        if not at:
            assert first.setdefault(row["tree_id"], before) == before
        else:
            assert before == by_id[at]["receipt"].observation.state_after
            below += 1
    return below


THEIRS = "t.grown_node not in ('', 'rollout-0')"
CONSUMED = f"t.state = {int(tree_pb2.TREE_STATE_CONSUMED)}"
NODES = 5


@pytest.mark.slow
@pytest.mark.parametrize("environment", [CALCULATOR, OWN], ids=["calculator", "class"])
async def test_trees_of_a_joined_node_that_act_are_trained_on(
    tmp_path: Path, environment: dict[str, Any], eventually: Any
) -> None:
    folder = tmp_path / "run"
    tmp_path.chmod(0o755)
    chains = ":" in environment["name"]  # the calculator keeps no state
    async with (
        training(folder, acting(folder, environment)) as run,
        joined(run, tmp_path / "node", "--threads", "1") as node,
    ):
        await eventually(
            lambda: (
                len(answers(run, f"{THEIRS} and {CONSUMED}")) >= 4
                and answers(run, f"not {THEIRS} and {CONSUMED}")
                and (not chains or chained(run, answers(run, CONSUMED)))
            ),
            300.0,
            "answers in trees of the joined node that were trained on, and in those of our own",
        )
        calls = run.rows(
            f"select count(*) from segments a where a.finish = {int(Finish.TOOL_CALL)} and"
            f" a.tree_id in (select t.tree_id from trees t where {CONSUMED}) and not exists"
            " (select 1 from segments b where b.parent = a.id and b.fork = a.length)"
        )
        assert calls == [(0,)], "every action of a trained tree has its answer"
        assert not run.rows(
            "select reason from refused where reason not in ('STALE_EPOCH', 'TREE_DROPPED')"
        )
        dropped = "select reason from trees where reason != '' and reason not like 'RUN_OVER%'"
        assert not run.rows(dropped)
        await run.ask("runs", "cancel", run.run_id)
        assert await node.ends(30.0) == 0, node.output
    if chains:
        assert chained(run, answers(run, CONSUMED)) > 0


@pytest.mark.slow
async def test_a_tree_whose_joined_node_is_killed_goes_on_with_its_states(
    tmp_path: Path, eventually: Any
) -> None:
    folder = tmp_path / "run"
    tmp_path.chmod(0o755)
    begun = (
        f"t.claim_node not in ('', 'rollout-0') and t.state = {int(tree_pb2.TREE_STATE_GROWING)}"
    )
    async with training(folder, acting(folder, OWN, sleep=0.4)) as run:
        orphans = set[bytes]()

        def has_begun() -> bool:  # the claims of a node that dies may end before one can look
            found = {row["tree_id"] for row in answers(run, begun)} - orphans
            orphans.update(found)
            return bool(found)

        def over() -> bool:
            ended = f"select t.tree_id from trees t where {CONSUMED} or t.reason != ''"
            return orphans <= {tree for (tree,) in run.rows(ended)}

        def went_on() -> bool:
            claims = {(row["tree_id"], row["epoch"]) for row in answers(run, CONSUMED)}
            return any(sum(tree == orphan for tree, _ in claims) > 1 for orphan in orphans)

        # A tree may have had its last answer when its node dies: then another node is to die.
        for attempt in range(NODES):
            async with joined(run, tmp_path / f"node-{attempt}", "--threads", "1") as node:
                await eventually(has_begun, 240.0, "an answer in a tree of the joined node")
                node.stop(signal.SIGKILL)
                await node.ends()
            await eventually(over, 240.0, "the ends of trees whose node died")
            if went_on():
                break
        assert went_on(), f"no tree of {NODES} killed nodes was answered under two claims"
        found = [row for row in answers(run, CONSUMED) if row["tree_id"] in orphans]
        chained(run, found)
        assert not run.rows("select reason from scores where reason like 'ENVIRONMENT_DIVERGED%'")
        await run.ask("runs", "cancel", run.run_id)
