"""Rows of games, and paths of a weak player: `python -m bench.textworld.games FOLDER`.

Runs in the interpreter that has TextWorld (`make environments`). A row has the start in its prompt
and the numbers that make the game, never the way. The player knows the way in some of its steps
and takes any possible command in the others; its games are none of the rows'. All draws come from
the numbers below, so the same TextWorld writes the same files.
"""

import json
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from methods.environment.textworld import TextWorld

ROWS, PATHS, TURNS = 500, 1000, 8
KNOWS = 0.25
"""Share of the player's steps that go the shortest way."""
END = "."
"""The mark that ends an action: `environment.end` of the recipe."""
_TASK = "Find the coin and take it."
_APART = 1_000_000  # seeds of the player's games begin there
_PLAYS = 4  # times that it plays each


def row_of(seed: int) -> dict[str, Any]:
    """Return the row of a game."""
    length = 3 + seed % 2
    world = TextWorld(TURNS)
    row: dict[str, Any] = {"seed": seed, "length": length, "rooms": 2 * length}
    return {**row, "prompt": f"{_TASK} {world.begin(row)}"}


def path_of(seed: int) -> dict[str, Any]:
    """Return a path of the weak player: the prompt, commands and answers, and the reward."""
    row, rng = row_of(_APART + seed // _PLAYS), random.Random(f"player {seed}")
    world = TextWorld(TURNS)
    world.reset(row)
    world.begin(row)
    turns: list[tuple[str, str]] = []
    done, reward = False, 0.0
    while not done:
        command = rng.choice(world.commands)
        if rng.random() < KNOWS:
            command = way(world)
        text, reward, done = world.step(command)
        turns.append((f"{command} {END}", text))
    return {"prompt": row["prompt"], "turns": turns, "reward": reward}


def way(world: TextWorld) -> str:
    """Return the command that begins the shortest way to the coin."""
    goal = next(fact[2] for fact in world.facts if fact[0] == "at" and fact[1] != "P")
    exits: dict[str, list[tuple[str, str]]] = {}
    for name, there, *here in sorted(world.facts):
        if name.endswith("_of"):
            exits.setdefault(here[0], []).append((name.removesuffix("_of"), there))
    first = {world.anchor: "take coin"}  # the command that begins the way to a room
    waiting = deque([world.anchor])
    while goal not in first:
        here_now = waiting.popleft()
        for direction, there in exits[here_now]:
            if there not in first:
                begun = here_now != world.anchor
                first[there] = first[here_now] if begun else f"go {direction}"
                waiting.append(there)
    return first[goal]


def lines(count: int, make: Callable[[int], dict[str, Any]]) -> Iterator[str]:
    """Return so many objects, a line each."""
    return (json.dumps(make(seed)) + "\n" for seed in range(count))


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(lines(ROWS, row_of)))
    (folder / "paths.jsonl").write_text("".join(lines(PATHS, path_of)))


if __name__ == "__main__":
    main()
