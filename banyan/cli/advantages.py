"""`banyan advantages`: what an estimator makes of stored trees, without training."""

import contextlib
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer
import yaml

from banyan import registry
from banyan.cli.options import Json
from banyan.cli.render.console import emit_json, err
from banyan.cli.render.tree_files import TreeLine, read
from banyan.errors import InvalidInput
from banyan.recipe_loader import yaml_text

if TYPE_CHECKING:
    from services.learner.data.credit import Credit

_MOST_SEGMENTS = 200_000  # held at a time: a group, or the whole batch where an estimator needs it
_LARGE = 100.0  # an advantage of as many times what rewards differ by is none
Group = list[TreeLine]
By = Literal["task", "group"]


def advantages(
    trees: Annotated[
        str,
        typer.Argument(metavar="TREES.jsonl", help="File of `banyan trees export`; - for input."),
    ],
    estimator: Annotated[
        str, typer.Option("--estimator", help="Name of an estimator, or module:attribute.")
    ] = "grpo",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as whiten=true")
    ] = None,
    by: Annotated[
        By,
        typer.Option(
            "--by", help="task: trees of one task_id are compared. group: as training did."
        ),
    ] = "task",
    evaluations: Annotated[
        bool, typer.Option("--eval", help="Takes trees of evaluations (purpose EVAL) too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Prints the advantage of each segment as JSON lines, with or without --json. Trees of one task_id form a group, or with
    --by group those of one group_id. Trees of evaluations are left out unless --eval is given."""
    given = _settings(settings or ())
    whiten = given.pop("whiten", False)
    if not isinstance(whiten, bool):
        raise InvalidInput(f"--set whiten={whiten!r} must be true or false")
    built = _built(estimator, given, whiten)
    with _opened(trees) as file, _of_file(trees):
        largest = 0.0
        for group, credit in _credits(_groups(file, trees, by, evaluations), built, whiten):
            _print(group, credit)
            largest = max(largest, _beyond(credit))
    if largest:
        err.print(
            f"an advantage of {largest:.4g} is beyond what rewards differ by: the estimator's scale is next to 0 in a group "
            "whose rewards are not all equal; mc-grpo needs a floor, such as --set floor=1"
        )


def _settings(overrides: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key.strip():
            raise InvalidInput(f"--set {override!r} must be key=value, such as whiten=true")
        try:
            found[key.strip()] = yaml_text.parsed(value)
        except yaml.YAMLError:
            raise InvalidInput(f"--set {override!r}: {value!r} is not a YAML value") from None
    return found


def _built(name: str, given: dict[str, Any], whiten: bool) -> Any:
    """The estimator. Whether the batch is whitened is this command's to say, for every estimator."""
    known = getattr(registry.find("optimise", name), "__dataclass_fields__", {})
    return registry.estimator(name, given | ({"whiten": whiten} if "whiten" in known else {}))


def _opened(name: str) -> BinaryIO:
    """The file; what comes as input is kept in a temporary one, because it is read twice."""
    try:
        source: BinaryIO = sys.stdin.buffer if name == "-" else Path(name).open("rb")  # noqa: SIM115
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror}") from None
    if source.seekable() and name != "-":
        return source
    kept = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(source, kept)
    kept.seek(0)
    return kept


@contextlib.contextmanager
def _of_file(name: str) -> Iterator[None]:
    """What is wrong with a line is said with its file."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(
            f"{name}, {error}" if str(error).startswith("line ") else str(error)
        ) from None


def _credits(groups: Iterator[Group], built: Any, whiten: bool) -> Iterator[tuple[Group, "Credit"]]:
    """Groups with their advantages, in the order in which the file begins them: one at a time, or the batch as a whole."""
    if not whiten and not hasattr(built, "factors"):
        yield from ((group, _estimated(group, built)) for group in groups)
        return
    from services.learner.data import credit as credits_module

    held = []
    for group in groups:
        held.append((group, _estimated(group, built)))
        _check_size(
            (line for each, _ in held for line in each), "whitening and shaping hold the whole file"
        )
    found = credits_module.over_batch([credit for _, credit in held], built, whiten)
    yield from ((group, credit) for (group, _), credit in zip(held, found, strict=True))


def _groups(file: BinaryIO, name: str, by: By, evaluations: bool) -> Iterator[Group]:
    """Trees by task, or as they were grown. The whole file is checked first; then a group at a time is in memory, wherever
    its lines stand."""
    places: dict[str, list[tuple[int, int]]] = {}
    at = left_out = 0
    for number, raw in enumerate(file, start=1):
        if raw.strip():
            line = read(_text(raw, number), number)
            if line.evaluates and not evaluations:
                left_out += 1
            else:
                places.setdefault(_key(line, by), []).append((at, number))
        at += len(raw)
    if left_out and not places:
        raise InvalidInput(
            f"{name} holds trees of evaluations only ({left_out}); --eval takes them"
        )
    if left_out:
        err.print(f"left out: {left_out} trees of evaluations; --eval takes them too")
    if not places:
        raise InvalidInput(
            f"{name} holds no trees; give the lines that `banyan trees export` prints"
        )
    for spots in places.values():
        group = [_line_at(file, place, number) for place, number in spots]
        _check_twice(group)
        _check_size(group, "a group is held whole")
        yield group


def _key(line: TreeLine, by: By) -> str:
    """What trees of one group share."""
    if by == "task":
        return line.task_id
    if not line.group_id:
        raise InvalidInput(
            f"line {line.number}: tree {line.tree_id!r} has no `group_id`, which --by group needs"
        )
    return line.group_id


def _text(raw: bytes, number: int) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"line {number}: not UTF-8 text") from None


def _line_at(file: BinaryIO, place: int, number: int) -> TreeLine:
    file.seek(place)
    return read(_text(file.readline(), number), number)


def _check_twice(group: Group) -> None:
    seen: dict[str, int] = {}
    for line in group:
        if line.tree_id in seen:
            raise InvalidInput(
                f"line {line.number}: tree {line.tree_id!r} stands in line {seen[line.tree_id]} already; leave one out"
            )
        seen[line.tree_id] = line.number


def _check_size(lines: Any, what: str) -> None:
    segments = 0
    for line in lines:
        segments += len(line.tree)
        if segments > _MOST_SEGMENTS:
            raise InvalidInput(
                f"line {line.number}: more than {_MOST_SEGMENTS} segments; {what}: split the file by group"
            )


def _estimated(group: Group, built: Any) -> "Credit":
    from services.learner.data import credit as credits_module

    _check_spoken(group, built)
    trees = [credits_module.ScoredTree(g.tree, g.leaves, g.rewards, g.facts) for g in group]
    try:
        return credits_module.estimate(group[0].task_id, trees, built, lambda _tree, _leaf: False)
    except InvalidInput as error:
        raise InvalidInput(_as_in_file(str(error), group)) from None


def _check_spoken(group: Group, built: Any) -> None:
    silent = next((line for line in group if line.silent), None)
    if silent and getattr(built, "needs_logprobs", False):
        raise InvalidInput(
            f"line {silent.number}: node {silent.silent!r} has no `logprobs`, which this estimator needs"
        )


def _as_in_file(message: str, group: Group) -> str:
    """The message with the line and the id that the file gives a segment, for the digest that we know it by."""
    for line in group:
        for segment, name in line.names.items():
            if (digest := segment.hex()[:12]) in message:
                return f"line {line.number}: {message.replace(digest, name)}"
    return f"line {group[0].number}: {message}"


def _beyond(credit: "Credit") -> float:
    """The size of a group's largest advantage, where it is too large to be one; 0 where none is."""
    values = [
        x
        for tree in credit.advantages.node_G_N or credit.advantages.leaf_G_L
        for x in tree.tolist()
    ]
    rewards = [
        x for view in credit.group.trees for x in view.rewards_L.tolist() if math.isfinite(x)
    ]
    largest = max((abs(x) for x in values if math.isfinite(x)), default=0.0)
    return (
        largest
        if largest > _LARGE * max(1.0, max(rewards, default=0.0) - min(rewards, default=0.0))
        else 0.0
    )


def _print(group: Group, credit: "Credit") -> None:
    from services.learner.data import explain

    for index, line in enumerate(group):
        found = {said.segment: said for said in explain.lines(credit, index)}
        for segment, name in line.names.items():
            said = found[segment]
            row = {
                "tree_id": line.tree_id,
                "id": name,
                "paths": said.paths,
                "advantage": said.advantage,
            }
            emit_json(row | {"positive": said.positive, "negative": said.negative})
