"""The beginnings of opened environments: one by its name, or that of a run's recipe.

A client names no files of this machine. So an environment that reads some, or runs code of the
user's, comes from a run alone, whose recipe the owner has allowed.
"""

import json
from dataclasses import dataclass
from typing import Any

from banyan import registry
from banyan.digest import canonical, row_digest
from banyan.draws import key as draw_key
from banyan.environments.cut import cut
from banyan.environments.hosted import Hosted
from banyan.environments.hosting import HostedResult, HostedTask
from banyan.environments.observation import ToolOutcome
from banyan.errors import InvalidInput, NotFound, Refused
from banyan.plugins.environment import OURS
from banyan.reasons import Reason
from banyan.recipe import Recipe
from banyan.recipe_loader.environment_spec import environment_of
from banyan.text.printable import encodable
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import verifier_service_pb2 as pb
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from services.verifier.environments.opened.ports import Runs
from services.verifier.environments.opened.table import OpenEnvironment
from services.verifier.environments.runner import Runner

_MOST_ROW = 256 << 10  # characters; a state holds at most 24 KiB of it
_MOST_SETTINGS = 4 << 10  # characters; they are kept while the environment is open
_MOST_ABOUT = 1 << 17
_MOST_NAME = 200  # characters of a run's id; no run has a longer one
_MOST_TURNS = 1000  # of an environment that no run bounds


@dataclass(frozen=True, slots=True)
class Beginning:
    """An environment before its first action, and what it says of itself."""

    opened: OpenEnvironment
    about: str


class Opening:
    """Begins episodes.

    runs: reads runs and trees.
    runner: asks classes of users what they say of themselves.
    """

    def __init__(self, runs: Runs, runner: Runner) -> None:
        self._runs, self._runner = runs, runner

    async def begin(self, request: pb.OpenEnvironmentRequest) -> Beginning:
        """Return the beginning of an episode.

        Raises InvalidInput for a request or a class that is wrong, NotFound for an unknown run or
        tree, Refused for a row that is held out.
        """
        if bool(request.environment) == bool(request.run_id):
            raise InvalidInput(
                "name either an environment or a run_id, whose recipe has one; got"
                f" environment {request.environment[:80]!r} and run_id {request.run_id[:80]!r}"
            )
        named = _named(request) if request.environment else await self._of_run(request)
        spec, row, seed = named
        environment = registry.environment(spec.name, spec.settings, spec.hosting)
        drawn = draw_key(seed, "environment")
        state = environment.reset(row, drawn)
        about = await self._about(environment, row, drawn)
        made = OpenEnvironment(environment, state, spec.answer_chars, spec.turns)
        return Beginning(made, encodable(cut(about, _MOST_ABOUT)))

    async def _of_run(
        self, request: pb.OpenEnvironmentRequest
    ) -> tuple[EnvironmentSpec, dict[str, Any], int]:
        if request.settings_json:
            raise InvalidInput(
                "settings_json goes with a named environment; those of a run are its recipe's"
            )
        run = await self._runs.read_run(request.run_id[:_MOST_NAME])
        if not request.tree_id:
            row = _object(request.row_json, "row_json", _MOST_ROW)
            _refuse_held_out(run, row_digest(row))
            return _spec_of(run), row, request.seed
        if request.row_json:
            raise InvalidInput("give row_json or tree_id: a tree has its own row")
        tree = await self._runs.read_tree(request.tree_id)
        _refuse_other(run, tree)
        spec = GenerateSpec.from_json(tree.generate_json).environment
        if spec is None:
            raise _none_in(run)
        seed = request.seed if request.HasField("seed") else tree.seed
        return spec, json.loads(tree.row_json), seed

    async def _about(self, environment: Any, row: dict[str, Any], seed: int) -> str:
        """Return what an environment says of itself; of a class, begin its episode for that."""
        if not isinstance(environment, Hosted):
            return str(environment.about())
        task = HostedTask(environment.name, environment.settings, environment.hosting, row, seed)
        result = await self._runner.do(environment.name, task)
        assert isinstance(result, HostedResult)  # as the task is of a class
        if result.outcome is not ToolOutcome.OK:
            raise InvalidInput(
                f"environment {environment.name!r} cannot begin an episode:"
                f" {result.outcome.name} within {environment.hosting.seconds:g} s and"
                f" {environment.hosting.memory_mb} MB, as the run's recipe has them"
            )
        return result.text


def _named(
    request: pb.OpenEnvironmentRequest,
) -> tuple[EnvironmentSpec, dict[str, Any], int]:
    if request.tree_id:
        raise InvalidInput("tree_id goes with run_id; a named environment gets row_json")
    if request.environment not in OURS:
        raise InvalidInput(
            f"environment {request.environment[:80]!r} cannot be opened by name; known:"
            f" {', '.join(OURS)}. One that reads files or runs code of yours is opened with the"
            " run_id of a run whose recipe names it"
        )
    settings = _object(request.settings_json, "settings_json", _MOST_SETTINGS)
    spec = EnvironmentSpec(name=request.environment, settings=settings, turns=_MOST_TURNS)
    return spec, _object(request.row_json, "row_json", _MOST_ROW), request.seed


def _spec_of(run: rs.Run) -> EnvironmentSpec:
    try:
        recipe = Recipe.model_validate_json(run.recipe_json)
    except ValueError as error:
        raise InvalidInput(f"the recipe of run {run.run_id} is not one: {error}") from None
    spec = environment_of(recipe)
    if spec is None:
        raise _none_in(run)
    return spec


def _none_in(run: rs.Run) -> InvalidInput:
    return InvalidInput(f"run {run.run_id} has no environment; name a run whose recipe has one")


def _object(text: str, field: str, most: int) -> dict[str, Any]:
    """Return the object of a text; an empty one for none. Raises InvalidInput."""
    if len(text) > most:
        raise InvalidInput(f"{field} has {len(text)} characters; at most {most} are taken")
    try:
        value = json.loads(text or "{}")
        canonical(value)  # no NaN, and no half characters
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{field} is no JSON that can be kept: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{field} is {type(value).__name__}, not an object")
    return value


def _refuse_other(run: rs.Run, tree: tree_pb2.TreeSpec) -> None:
    """Raise NotFound for another run's tree, Refused for one whose row is held out."""
    if tree.run_id != run.run_id:
        raise NotFound(f"run {run.run_id} has no tree {tree.tree_id.hex()[:12]}")
    _refuse_held_out(run, tree.row_digest)


def _refuse_held_out(run: rs.Run, row: bytes) -> None:
    if row in run.held_out:
        raise Refused(
            f"row {row.hex()[:12]} is held out in run {run.run_id}; take one that it trains on",
            Reason.HELD_OUT,
        )
