"""Reference of the registered methods, no method itself: a page written from their docstrings.

`python -m methods.reference` prints docs/methods.md. The head of a method's module begins with its
name and a summary, followed by the lines `Paper:`, `Formula:` and `Left out:`, where they apply.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from banyan import registry
from banyan.recipe import Recipe
from banyan.recipe_loader import votes
from banyan.recipe_loader.load import load
from methods import settings

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
AXES = {
    "generate": "Tree policies: `generate.policy`",
    "environment": "Environments: `environment.name`",
    "filter": "Scorers: `filter`",
    "control": "Curricula: `control.curriculum`",
    "rooms": "Shares of the growth budget: `control.rooms`",
    "replay": "Replay: `replay.policy`",
    "optimise": "Estimators: `optimise.advantage`",
}
_HEAD = """# The methods

Every registered method, by the key of a recipe that selects it. The name links to its file, whose
head says more. *Recipe* is one that uses the method (`banyan recipes show NAME`), *left out* lists
the parts of the paper that it lacks. Behind the methods of a kind stand their settings; those of
estimators are in [plugins](plugins.md#an-estimator). Losses are in
[services/learner/losses](../services/learner/losses).

This page is written from the docstrings in methods/ (`make methods-page`); a test compares the two.
"""
_FIELD = re.compile(r"^(Paper|Formula|Left out): (.*(?:\n    .*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method.

    axis: entry-point group
    name: registered name
    file: path of its module in the repository
    summary: first paragraph of the module's docstring, without the name
    fields: text of the lines Paper, Formula and Left out, as far as present
    """

    axis: str
    name: str
    file: str
    summary: str
    fields: Mapping[str, str]


def methods() -> Iterator[Method]:
    """Yield all registered methods, by axis and name."""
    for axis in AXES:
        for name in registry.names(axis):
            yield _method(axis, name)


def _method(axis: str, name: str) -> Method:
    module = registry.find(axis, name).__module__
    head = sys.modules[module].__doc__ or ""
    summary = " ".join(head.split("\n\n")[0].split()).partition(": ")[2]
    fields = {key: " ".join(text.split()) for key, text in _FIELD.findall(head)}
    file = f"{module.replace('.', '/')}.py"
    return Method(axis=axis, name=name, file=file, summary=summary, fields=fields)


def used_by(recipe: Recipe) -> set[tuple[str, str]]:
    """Return the (axis, name) pairs of the methods that a recipe uses."""
    names = {
        "generate": [recipe.generate.policy],
        "filter": [*recipe.scorers, *(part.name for part in votes.scorers(recipe))],
        "control": [recipe.control.curriculum],
        "rooms": [recipe.control.rooms],
        "replay": [recipe.replay.policy] if recipe.replay and recipe.replay.fraction else [],
        "optimise": [recipe.optimise.advantage],
    }
    return {(axis, name) for axis in names for name in names[axis]}


def example(method: Method, uses: Mapping[str, set[tuple[str, str]]]) -> str:
    """Return the recipe that shows a method best; empty if none uses it.

    It is the one of the method's name, else the arithmetic recipe, else the first in order.
    """
    candidates = sorted(name for name, used in uses.items() if (method.axis, method.name) in used)
    preferred = [name for name in (method.name, "arithmetic") if name in candidates]
    return next(iter([*preferred, *candidates]), "")


def markdown(folder: Path = RECIPES) -> str:
    """Return the page. folder: recipes that may use the methods."""
    uses = {path.stem: used_by(load(path)) for path in sorted(folder.glob("*.yaml"))}
    known = list(methods())
    lines = [_HEAD]
    for axis, title in AXES.items():
        of_axis = [method for method in known if method.axis == axis]
        lines += _table(title, of_axis, uses)
        if axis != "optimise":
            lines += _settings(of_axis)
    return "\n".join(lines)


def _table(
    title: str, known: Iterable[Method], uses: Mapping[str, set[tuple[str, str]]]
) -> list[str]:
    rows = []
    for method in known:
        recipe = example(method, uses)
        cells = [
            f"[`{method.name}`](../{method.file})",
            method.summary,
            method.fields.get("Paper", ""),
            method.fields.get("Formula", ""),
            f"[{recipe}](../recipes/{recipe}.yaml)" if recipe else "",
            method.fields.get("Left out", ""),
        ]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [
        f"## {title}",
        "",
        "| name | method | paper | formula | recipe | left out |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _settings(known: Iterable[Method]) -> list[str]:
    """Return the table of the settings of some methods; nothing where they have none."""
    rows = []
    for method in known:
        for setting in settings.of(registry.find(method.axis, method.name)):
            default = setting.default if setting.needed else f"`{setting.default}`"
            meaning = setting.meaning.replace("<", "\\<")  # a mark is no HTML
            cells = [f"`{method.name}`", f"`{setting.name}`", default, meaning]
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if not rows:
        return []
    return ["| of | setting | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]


if __name__ == "__main__":
    sys.stdout.write(markdown())
