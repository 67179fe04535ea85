"""The oracle of the fault tests sees each kind of damage, in copies of one finished run's store."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.cli.command import banyan
from tests.faults.audit import audit
from tests.faults.damages import DAMAGES, DROPPED, REFUSED
from tests.faults.harness import recipe, system, tiny_model
from tests.faults.oracle.allowed import Allowed

pytestmark = pytest.mark.faults

MADE = 2


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the store of a run without faults, and the run's id."""
    return asyncio.run(_finish(tmp_path_factory.mktemp("finished")))


async def _finish(folder: Path) -> tuple[Path, str]:
    async with system(folder / "s") as made:
        run_id = await made.create(
            recipe(tiny_model(folder / "model"), budget__steps=MADE, generate__trees=2)
        )
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    return folder / "s" / "store.sqlite", run_id


@pytest.fixture
def damaged(finished: tuple[Path, str], tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that damages a copy by SQL and returns the audit's findings."""

    def damage(*statements: str, allowed: Allowed | None = None) -> list[str]:
        database, run_id = finished
        shutil.copy(database, tmp_path / "copy.sqlite")
        with sqlite3.connect(tmp_path / "copy.sqlite") as db:
            changed = [
                db.execute(statement.replace("RUN", f"'{run_id}'")).rowcount
                for statement in statements
            ]
        db.close()
        assert all(count > 0 for count in changed), f"{statements} changed {changed} rows"
        return audit(tmp_path / "copy.sqlite", run_id, MADE, *([allowed] if allowed else []))

    return damage


def test_an_undamaged_store_is_clean(finished: tuple[Path, str]) -> None:
    assert audit(*finished, MADE) == []


def test_scores_that_come_after_the_run_leave_it_clean(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    database, run_id = finished
    shutil.copy(database, tmp_path / "store.sqlite")
    words = ("rescore", run_id, "--scorer", "length", "--settings", '{"most": 2}', "--json")
    ended = banyan(*words, "--state", tmp_path)
    assert json.loads(ended.stdout)["scored_now"] > 0, ended
    assert audit(tmp_path / "store.sqlite", run_id, MADE) == []


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_seen(damaged: Callable[..., list[str]], kind: str) -> None:
    statements, words = DAMAGES[kind]
    found = damaged(*statements)
    assert any(words in line for line in found), found


def test_rows_that_were_thrown_away_cannot_be_counted_again(
    damaged: Callable[..., list[str]],
) -> None:
    assert damaged("insert into counts (run_id, name, count) values (RUN, 'thrown_away', 3)") == []


def test_an_index_that_disagrees_with_its_table_is_seen(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    """A page of the file is zeros, as after a power loss."""
    database, run_id = finished
    shutil.copy(database, tmp_path / "copy.sqlite")
    with sqlite3.connect(database) as db:
        (size,) = db.execute("pragma page_size").fetchone()
        (page,) = db.execute(
            "select rootpage from sqlite_master where name = 'ix_trees_run_state'"
        ).fetchone()
    db.close()
    with (tmp_path / "copy.sqlite").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))
    (word,) = audit(tmp_path / "copy.sqlite", run_id, MADE)
    assert word.startswith("database: ")


def test_what_the_caller_allows_is_forgiven_by_its_reason_alone(
    damaged: Callable[..., list[str]],
) -> None:
    refused = REFUSED
    assert damaged(refused, allowed=Allowed(refused=["STALE_EPOCH"])) == []
    assert damaged(refused, allowed=Allowed(refused=["ORDINAL_TAKEN"], late=["STALE_EPOCH"])) != []
    assert damaged("update runs set learner_epoch = 2", allowed=Allowed(successors=True)) == []


def test_a_score_that_came_for_a_dropped_tree_is_forgiven_but_not_the_drop(
    damaged: Callable[..., list[str]],
) -> None:
    """Dropped trees leave late scores; the drop itself is reported for the tree."""
    tree = "(select min(tree_id) from trees)"
    late = (
        f"insert into late (digest, tree_id, reason, payload) values (x'01', {tree},"
        " 'TREE_DROPPED', x'')"
    )
    drop = f"update trees set state = {DROPPED}, reason = 'REDUNDANT' where tree_id = {tree}"
    assert any("rows in late: TREE_DROPPED" in line for line in damaged(late))
    found = damaged(late, drop)
    assert not any("in late" in line for line in found)
    assert any("was dropped: REDUNDANT" in line for line in found)


def test_a_group_that_a_batch_gave_up_is_no_loss(
    damaged: Callable[..., list[str]], finished: tuple[Path, str]
) -> None:
    """The learner may drop a group with a reason in the batch; without the reason it is lost."""
    database, run_id = finished
    group = f"{run_id}/train/0"
    with sqlite3.connect(database) as db:
        (summary,) = db.execute("select summary_json from batches where ordinal = 0").fetchone()
    db.close()
    left = {
        **json.loads(summary),
        "groups": [g for g in json.loads(summary)["groups"] if g["group_id"] != group],
    }
    statements = [
        "delete from batch_trees where tree_id in (select tree_id from trees where group_id ="
        f" '{group}')",
        f"update trees set state = {DROPPED}, reason = 'ZERO_VARIANCE' where group_id = '{group}'",
        "update groups set state = 4, dropped = 2, reason = 'ZERO_VARIANCE' where group_id ="
        f" '{group}'",
        "update tallies set consumed = consumed - 1, dropped = dropped + 1 where label = ''",
        "update counts set count = count - 2 where name = 'trees_consumed'",
        "insert into counts (run_id, name, count) values (RUN, 'trees_dropped', 2)"
        " on conflict (run_id, name) do update set count = count + 2",
        "update batches set group_ids = json_remove(group_ids, '$[0]') where ordinal = 0",
        f"update batches set summary_json = '{json.dumps(left)}' where ordinal = 0",
    ]
    found = damaged(*statements)
    assert len(found) == 2 and all("was dropped: ZERO_VARIANCE" in line for line in found), found
    told = (
        f"update batches set dropped = '{json.dumps([[group, 'ZERO_VARIANCE']])}' where ordinal = 0"
    )
    assert damaged(*statements, told) == []
