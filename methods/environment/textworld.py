"""textworld: coin-collector games, played by TextWorld's own engine.

Paper: Côté et al. 2018, TextWorld, arXiv 1806.11532; the games: Yuan et al. 2018, arXiv 1806.11525
Left out: the texts of compiled games, which take seconds a game; rooms are described in a line

A row names a game by `seed`, `length` (rooms from the start to the coin) and `rooms`; it is made
from that in some 20 ms. An action is a command, such as `go north` or `take coin`. The answer is
where the player is, and the state's anchor is that room, whatever was said. Taking the coin earns 1
and ends the game, as does the last turn.

This file needs TextWorld (requirements-textworld.lock) and nothing of Banyan's.
"""

import json
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_MOST_ROOMS = 30
_MOST_TURNS = 100


class TextWorld:
    """One episode at a time. Its state is the facts of TextWorld's logic that hold."""

    deterministic = True

    def __init__(self, turns: int = 8) -> None:
        if type(turns) is not int or not 1 <= turns <= _MOST_TURNS:
            raise ValueError(f"turns must be a whole number in 1..{_MOST_TURNS}, got {turns!r}")
        self._turns = turns

    def prepare(self) -> None:
        """Read TextWorld's rules and texts, which takes seconds."""
        game(0, 2, 2)

    def reset(self, row: Mapping[str, Any], seed: int = 0) -> None:
        """Begin the row's game, which is made when it is needed.

        Raises ValueError for numbers that make no game.
        """
        _numbers(row)
        self._row, self._turn, self._unlike = row, 0, ""
        self._state: Any = None

    def step(self, action: str) -> tuple[str, float, bool]:
        """Return the answer to a command, its reward, and whether the game is over."""
        if self._state is None and (start := self.begin(self._row)) not in str(self._row["prompt"]):
            self._unlike = f"the row's prompt does not show {start!r}, where its game begins"
        command = " ".join(action.lower().replace(".", " ").split())
        known = command in self._actions
        if known:
            self._state.apply(self._actions[command])
            self._look()
        self._turn += 1
        won = any(fact[0] == "in" for fact in self.facts)  # the coin, in the player's hands
        text = "You take the coin." if won else self.shown if known else f"You can't. {self.shown}"
        return text, float(won), won or self._turn >= self._turns

    def snapshot(self) -> bytes:
        """Return the facts, the names of things, and the number of turns."""
        facts = sorted([fact.name, *map(str, fact.arguments)] for fact in self._state.facts)
        return json.dumps([facts, self._names, self._turn]).encode()

    def restore(self, state: bytes) -> None:
        """Go back to a snapshot."""
        from textworld.logic import Proposition, State, Variable

        facts, self._names, self._turn = json.loads(state)
        self._unlike = ""
        made = [
            Proposition(name, [Variable(*text.split(": ")) for text in arguments])
            for name, *arguments in facts
        ]
        self._state = State(_knowledge().logic, made)
        self._look()

    def begin(self, row: Mapping[str, Any]) -> str:
        """Make a row's game, whatever its prompt; return what is seen at the start."""
        made, self._unlike = game(*_numbers(row)), ""
        self._names = {thing.id: thing.name for thing in made.infos.values() if thing.name}
        self._state, self._turn = made.world.state.copy(), 0
        self._look()
        return self.shown

    @property
    def anchor(self) -> str:
        """Name of the state: the player's room.

        Raises ValueError if the row is of another game, so that no path goes on in it.
        """
        if self._unlike:
            raise ValueError(f"{self._unlike}; make the rows with this version of TextWorld")
        return self._room

    @property
    def commands(self) -> list[str]:
        """Commands that do something here."""
        return sorted(self._actions)

    @property
    def facts(self) -> list[tuple[str, ...]]:
        """Relations that hold, with the ids of their things; no player sees them."""
        return [(fact.name, *(a.name for a in fact.arguments)) for fact in self._state.facts]

    def _look(self) -> None:
        """Read the room, what can be done there, and its line."""
        from textworld.generator.game import gen_commands_from_actions

        knowledge = _knowledge()
        rules, constants = knowledge.rules.values(), knowledge.types.constants_mapping
        actions = list(self._state.all_applicable_actions(rules, constants))
        commands = gen_commands_from_actions(actions, knowledge)
        named = [" ".join(self._names.get(word, word) for word in c.split()) for c in commands]
        self._actions = dict(zip(named, actions, strict=True))
        (self._room,) = (fact[2] for fact in self.facts if fact[:2] == ("at", "P"))
        exits = [name for name in _WAYS if f"go {name}" in self._actions]
        coin = " There is a coin here." if "take coin" in self._actions else ""
        room = self._names[self._room].capitalize()
        self.shown = f"{room}.{coin} Exits: {', '.join(exits)}."


_WAYS = ("east", "north", "south", "west")


def _numbers(row: Mapping[str, Any]) -> list[int]:
    """Return the numbers that make a row's game. Raises ValueError if they make none."""
    seed, length, rooms = (row.get(name) for name in ("seed", "length", "rooms"))
    whole = [number for number in (seed, length, rooms) if type(number) is int]
    # A room has four exits, and those of the chain need two of them.
    if (
        len(whole) < 3
        or whole[0] < 0
        or not 2 <= whole[1] <= whole[2] <= min(3 * whole[1], _MOST_ROOMS)
    ):
        raise ValueError(
            f"seed {seed!r}, length {length!r} and rooms {rooms!r} make no game: length is a whole "
            f"number from 2, rooms one from length to {_MOST_ROOMS}, at most three a room of it"
        )
    return whole


def game(seed: int, length: int, rooms: int) -> Any:
    """Return TextWorld's game: a chain of rooms from the player to the coin, and dead ends.

    Each room of the chain has as many dead ends as any other, or one more than the later ones.
    """
    import textworld
    from textworld.generator.game import Event, GameOptions, Quest

    options = GameOptions()
    options.seeds, options.kb = seed, _knowledge()
    options.grammar.allowed_variables_numbering = True
    maker, rng = textworld.GameMaker(options), random.Random(f"{seed} {length} {rooms}")
    chain = [maker.new_room()]
    while len(chain) < length:
        chain.append(_beside(maker, chain[-1], rng))
    for number in range(rooms - length):
        _beside(maker, chain[number % length], rng)
    maker.set_player(chain[0])
    coin = maker.new(type="o", name="coin")
    chain[-1].add(coin)
    taken = maker.new_fact("in", coin, maker.inventory)
    maker.quests = [Quest(win_events=[Event(conditions={taken})])]
    return maker.build(validate=False)


def _beside(maker: Any, room: Any, rng: random.Random) -> Any:
    """Return a new room behind one of the free exits of a room."""
    from textworld.generator.graph_networks import reverse_direction

    way = rng.choice(sorted(name for name, exit_ in room.exits.items() if exit_.dest is None))
    new = maker.new_room()
    maker.connect(room.exits[way], new.exits[reverse_direction(way)])
    return new


@lru_cache(maxsize=1)
def _knowledge() -> Any:
    from textworld.challenges.tw_coin_collector import coin_collector
    from textworld.generator.data import KnowledgeBase

    return KnowledgeBase.load(coin_collector.KB_PATH)
