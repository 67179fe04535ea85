"""`banyan advantages`: advantages of stored trees by an estimator, without training."""

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
from banyan.cli import recipes
from banyan.cli.options import Json
from banyan.cli.render.console import emit_json, err
from banyan.cli.render.tree_files import TreeLine, read
from banyan.cli.train import search_path
from banyan.errors import InvalidInput
from banyan.plugins import traits
from banyan.recipe_loader import yaml_text

if TYPE_CHECKING:
    from banyan.credit.estimate import Credit

# Segments in memory at a time: of a group, or of the whole batch if an estimator needs it.
_MOST_SEGMENTS = 200_000
_LARGE = 100.0  # an advantage beyond so many times the spread of rewards is an error of scale
Group = list[TreeLine]
By = Literal["task", "group"]


def advantages(
    trees: Annotated[
        str,
        typer.Argument(
            metavar="TREES.jsonl", help="File of `banyan trees export`; - for standard input."
        ),
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
        bool, typer.Option("--eval", help="Take trees of evaluations (purpose EVAL) too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the advantage of each segment of stored trees by an estimator, as JSON lines.

    Trees of one task_id form a group, or with --by group those of one group_id. Trees of
    evaluations are left out unless --eval is given. Lines are JSON with or without --json.
    """
    overrides_by_name = _settings(settings or ())
    whiten = overrides_by_name.pop("whiten", False)
    if not isinstance(whiten, bool):
        raise InvalidInput(f"--set whiten={whiten!r} must be true or false")
    with search_path.searched(_folders(trees)):
        built = _built(estimator, overrides_by_name, whiten)
        with _opened(trees) as file, _of_file(trees):
            largest = 0.0
            for group, credit in _credits(_groups(file, trees, by, evaluations), built, whiten):
                _print(group, credit)
                largest = max(largest, _beyond(credit))
    if largest:
        err.print(
            f"an advantage of {largest:.4g} is beyond what rewards differ by: the estimator's "
            "scale is next to 0 in a group whose rewards are not all equal; mc-grpo needs a "
            "floor, such as --set floor=1"
        )


def _folders(trees: str) -> list[Path]:
    """Return the folders of an estimator of the user's own."""
    return [Path.cwd()] if trees == "-" else recipes.folders(Path(trees))


def _settings(overrides: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key.strip():
            raise InvalidInput(f"--set {override!r} must be key=value, such as whiten=true")
        try:
            settings[key.strip()] = yaml_text.parsed(value)
        except yaml.YAMLError:
            raise InvalidInput(f"--set {override!r}: {value!r} is not a YAML value") from None
    return settings


def _built(name: str, settings: dict[str, Any], whiten: bool) -> Any:
    """Return the estimator. `whiten` is this command's option, for every estimator."""
    known = getattr(registry.find("optimise", name), "__dataclass_fields__", {})
    return registry.estimator(name, settings | ({"whiten": whiten} if "whiten" in known else {}))


def _opened(name: str) -> BinaryIO:
    """Return the file; input is copied to a temporary one, because it is read twice."""
    try:
        source: BinaryIO
        source = sys.stdin.buffer if name == "-" else Path(name).open("rb")  # noqa: SIM115
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
    """Prefix an error about a line with the name of its file."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(
            f"{name}, {error}" if str(error).startswith("line ") else str(error)
        ) from None


def _credits(groups: Iterator[Group], built: Any, whiten: bool) -> Iterator[tuple[Group, "Credit"]]:
    """Yield groups with their advantages in the order of the file, one by one or as one batch."""
    if not whiten and traits.attribute(built, "factors") is None:
        yield from ((group, _estimated(group, built)) for group in groups)
        return
    from banyan.credit import estimate as credits_module

    estimated = []
    for group in groups:
        estimated.append((group, _estimated(group, built)))
        _check_size(
            (line for each, _ in estimated for line in each),
            "whitening and shaping hold the whole file",
        )
    batch = credits_module.over_batch([credit for _, credit in estimated], built, whiten)
    yield from ((group, credit) for (group, _), credit in zip(estimated, batch, strict=True))


def _groups(file: BinaryIO, name: str, by: By, evaluations: bool) -> Iterator[Group]:
    """Yield trees by task, or by the group that they were grown in.

    The whole file is checked first; then one group at a time is in memory, wherever its lines are.
    """
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
    """Return the value that trees of one group share."""
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
    lines: dict[str, int] = {}
    for line in group:
        if line.tree_id in lines:
            raise InvalidInput(
                f"line {line.number}: tree {line.tree_id!r} stands in line {lines[line.tree_id]} "
                "already; leave one out"
            )
        lines[line.tree_id] = line.number


def _check_size(lines: Any, what: str) -> None:
    segments = 0
    for line in lines:
        segments += len(line.tree)
        if segments > _MOST_SEGMENTS:
            raise InvalidInput(
                f"line {line.number}: more than {_MOST_SEGMENTS} segments; {what}: split the file "
                "by group"
            )


def _estimated(group: Group, built: Any) -> "Credit":
    from banyan.credit import estimate as credits_module

    _check_spoken(group, built)
    trees = [credits_module.ScoredTree(g.tree, g.leaves, g.rewards, g.facts) for g in group]
    try:
        return credits_module.estimate(group[0].task_id, trees, built, lambda _tree, _leaf: False)
    except InvalidInput as error:
        raise InvalidInput(_as_in_file(str(error), group)) from None


def _check_spoken(group: Group, built: Any) -> None:
    silent = next((line for line in group if line.silent), None)
    if silent and traits.of_estimator(built).needs_logprobs:
        raise InvalidInput(
            f"line {silent.number}: node {silent.silent!r} has no `logprobs`, which this estimator "
            "needs"
        )


def _as_in_file(message: str, group: Group) -> str:
    """Replace the digest of a segment in a message by the line and the id in the file."""
    for line in group:
        for segment, name in line.names.items():
            if (digest := segment.hex()[:12]) in message:
                return f"line {line.number}: {message.replace(digest, name)}"
    return f"line {group[0].number}: {message}"


def _beyond(credit: "Credit") -> float:
    """Return the size of a group's largest advantage if it is too large to be one, else 0."""
    values = [
        x
        for tree in credit.advantages.node_G_N or credit.advantages.leaf_G_L
        for x in tree.tolist()
    ]
    rewards = [
        x for view in credit.group.trees for x in view.rewards_L.tolist() if math.isfinite(x)
    ]
    largest = max((abs(x) for x in values if math.isfinite(x)), default=0.0)
    spread = max(rewards, default=0.0) - min(rewards, default=0.0)
    return largest if largest > _LARGE * max(1.0, spread) else 0.0


def _print(group: Group, credit: "Credit") -> None:
    from services.learner.data import explain

    for index, line in enumerate(group):
        explained = {entry.segment: entry for entry in explain.lines(credit, index)}
        for segment, name in line.names.items():
            entry = explained[segment]
            row = {
                "tree_id": line.tree_id,
                "id": name,
                "paths": entry.paths,
                "advantage": entry.advantage,
            }
            emit_json(row | {"positive": entry.positive, "negative": entry.negative})
