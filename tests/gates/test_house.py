"""The house rules of the code: sizes, layers, words. CONTRIBUTING says why."""

import ast
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ("banyan/v1/",)
OLD_MIGRATIONS = "services/treestore/storage/migrations/versions/"
RELATIVE = frozenset(
    re.findall(
        r"\w+",
        "how nobody what whatever when whenever where wherever whether which who whoever whom"
        " whose why",
    )
)
PRIVATE = re.compile(r"\b(cards?|DESIGN|PROTOCOL|INFRA|LAYOUT|STYLE|PEERS) \d")
MOST_ARROWS = {"treestore": 60, "rollout": 35, "learner": 65, "gateway": 22, "chassis": 5}
REPEATED_LINES = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources(*folders: str) -> tuple[Path, ...]:
    """Our own Python files, without what is generated or frozen."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return tuple(path for path in paths if not name(path).startswith((*GENERATED, OLD_MIGRATIONS)))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(*folders: str) -> Iterator[tuple[Path, Function]]:
    for path in sources(*folders):
        for node in ast.walk(parsed(path)):
            if isinstance(node, Function):
                yield path, node


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


OURS = ("banyan", "methods", "services")


@pytest.mark.parametrize(
    ("most", "folders"), [(15, ("banyan", "services")), (20, ("tests", "bench"))]
)
def test_a_folder_can_be_read_at_a_glance(most: int, folders: tuple[str, ...]) -> None:
    held: dict[str, int] = defaultdict(int)
    for path in sources(*folders):
        if path.name != "__init__.py":
            held[name(path.parent)] += 1
    assert {folder: count for folder, count in held.items() if count > most} == {}


def test_files_are_short() -> None:
    lines = {name(path): path.read_text().count("\n") for path in sources(*OURS)}
    assert statistics.median(lines.values()) <= 90
    assert sorted(lines.values())[int(0.95 * len(lines))] < 250
    assert {path: count for path, count in lines.items() if count > 350} == {}


def test_functions_are_short_and_say_what_they_return() -> None:
    found = list(functions(*OURS))
    assert statistics.median(length(function) for _, function in found) <= 8
    assert [f"{name(p)}:{f.lineno} {f.name}" for p, f in found if length(f) > 50] == []
    assert [f"{name(p)}:{f.lineno} {f.name}" for p, f in found if f.returns is None] == []


def test_broad_excepts_are_few_and_each_has_its_reason() -> None:
    broad, count = [], 0
    for path in sources(*OURS):
        lines = path.read_text().splitlines()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ExceptHandler):
                count += 1
                caught = "" if node.type is None else ast.unparse(node.type)
                if not caught or re.search(r"\b(Base)?Exception\b", caught):
                    near = "\n".join(lines[node.lineno - 1 : (node.body[0].lineno)])
                    broad.append((f"{name(path)}:{node.lineno}", "#" in near))
    assert len(broad) <= 0.1 * count, [place for place, _ in broad]
    assert [place for place, reason in broad if not reason] == []


def test_lines_fit() -> None:
    wide = [
        f"{name(path)}:{number}"
        for path in sources(*OURS, "tests", "bench")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100
    ]
    assert wide == []


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and texts of docstrings, those below attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            for below, statement in zip([None, *node.body], node.body, strict=False):
                if below is None or isinstance(below, ast.Assign | ast.AnnAssign):
                    match statement:
                        case ast.Expr(ast.Constant(str() as text)):
                            yield statement.lineno, text


def test_docstrings_below_attributes_are_seen() -> None:
    source = """'''head'''\nclass A:\n    '''A.'''\n    b: int = 1\n    '''What'''\n"""
    assert list(docstrings(ast.parse(source))) == [(1, "head"), (3, "A."), (5, "What")]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    relative = []
    for path in sources(*OURS):
        for line, text in docstrings(parsed(path)):
            first = re.match(r"\W*([\w'-]*)", text)
            if first and first[1].lower() in RELATIVE:
                relative.append(f"{name(path)}:{line} {text[:60]}")
    assert relative == []


def test_nothing_cites_what_a_reader_does_not_have() -> None:
    kinds = (".py", ".md", ".yaml", ".toml", ".proto", ".sh")
    skipped = ("LICENSE", "requirements", ".venv", ".git/", "bench/results", "bench/kept")
    found = [
        f"{name(path)}: {match[0]}"
        for folder in (*OURS, "tests", "bench", "docs", "proto", "recipes", "k8s", ".ci")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in kinds and not name(path).startswith(skipped) and path != Path(__file__)
        for match in PRIVATE.finditer(path.read_text())
    ]
    found += [
        f"{name(path)}: {match[0]}"
        for path in sorted(ROOT.glob("*.md"))
        for match in PRIVATE.finditer(path.read_text())
    ]
    assert found == []


def arrows(service: str) -> dict[tuple[str, str], str]:
    """Pairs of rooms (top-level modules and packages of a service) with an import between them."""
    base = ROOT / "services" / service
    prefix = f"services.{service}."
    found = {}
    for path in sources(f"services/{service}"):
        here = path.relative_to(base).with_suffix("").parts[0]
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                for target in whole:
                    if target.startswith(prefix):
                        there = target.removeprefix(prefix).split(".")[0]
                        if there != here and here != "__init__":
                            found[here, there] = name(path)
    return found


@pytest.mark.parametrize("service", sorted(MOST_ARROWS))
def test_few_arrows_between_rooms(service: str) -> None:
    assert len(arrows(service)) <= MOST_ARROWS[service]


@pytest.mark.parametrize("service", [*sorted(MOST_ARROWS), "verifier", "supervisor"])
def test_no_circle_between_rooms(service: str) -> None:
    below: dict[str, set[str]] = defaultdict(set)
    for here, there in arrows(service):
        below[here].add(there)

    def reached(room: str) -> set[str]:
        found: set[str] = set()
        front = [room]
        while front:
            fresh = below[front.pop()] - found
            found |= fresh
            front += fresh
        return found

    assert [room for room in list(below) if room in reached(room)] == []


def forced(path: Path) -> set[int]:
    """Return the lines whose shape a contract forces: signatures, imports and Protocols."""
    found: set[int] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, Function):
            found |= {*range(node.lineno, node.body[0].lineno)}
        elif isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.ClassDef)
            and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
        ):
            found |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return found


def test_services_do_not_repeat_each_other() -> None:
    """Six lines in a row that two services share belong into the chassis or into banyan.

    Lines whose shape a contract forces do not count: signatures, such as those of an attention
    function or of a method that a Protocol restates; Protocol classes; and imports. All other lines
    do, those before and after them included, as if they followed each other.
    """
    places: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in sources("services"):
        service = path.relative_to(ROOT / "services").parts[0]
        ignored = forced(path)
        lines = [
            line.strip()
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if line.strip() and number not in ignored
        ]
        for start in range(len(lines) - REPEATED_LINES + 1):
            places[tuple(lines[start : start + REPEATED_LINES])].add(service)
    assert {window: found for window, found in places.items() if len(found) > 1} == {}
