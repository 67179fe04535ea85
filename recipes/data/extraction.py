"""The rows of recipes/extraction.yaml: orders in a sentence, and the object that states them.

`python recipes/data/extraction.py > recipes/data/extraction.jsonl` writes them, the same each time.
"""

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

ROWS, EXAMPLES = 360, 2
NAMES = (
    "Amara Bela Chidi Dana Elif Farid Greta Hana Ivo Jonas Kira Lena Mateo Nadia Omar Petra Quinn"
    " Rosa Samir Tilda Uwe Vera Wanda Yusuf"
)
ITEMS = (
    "apples bricks candles desks envelopes forks gloves hammers inks jars kettles lamps mirrors"
    " needles ovens pencils quilts ropes stools tiles"
)
WORDS = "two three four five six seven eight nine ten eleven twelve"
LEAST = 2  # the number of the first word
SENTENCES = (
    "{name} orders {count} {item}.",
    "Please send {count} {item} to {name}.",
    "{name} is waiting for {count} {item}.",
    "{count} {item} go to {name}.",
    "We owe {name} {count} {item}.",
    "The {item} for {name} are packed, {count} of them.",
    "Customer {name}: {item}, {count} pieces.",
    "{name} asked for {count} {item} last week.",
)


def rows() -> Iterator[dict[str, Any]]:
    """Yield the rows; no two have the same sentence, and none that of a worked example."""
    draws = random.Random(1)
    orders: dict[str, dict[str, Any]] = {}
    while len(orders) < EXAMPLES + ROWS:
        sentence, order = _order(draws)
        orders.setdefault(sentence, order)
    asked = list(orders.items())
    shown = [turn for sentence, order in asked[:EXAMPLES] for turn in _worked(sentence, order)]
    for sentence, order in asked[EXAMPLES:]:
        yield {"prompt": [*shown, _turn("user", sentence)], "order": order}


def _order(draws: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a sentence, and what it states. A third of the numbers are words."""
    order = {
        "count": draws.randrange(LEAST, LEAST + len(WORDS.split())),
        "item": draws.choice(ITEMS.split()),
        "name": draws.choice(NAMES.split()),
    }
    is_word = draws.random() < 1 / 3
    count = WORDS.split()[order["count"] - LEAST] if is_word else order["count"]
    sentence = draws.choice(SENTENCES).format(**order | {"count": count})
    return sentence[0].upper() + sentence[1:], order


def _worked(sentence: str, order: dict[str, Any]) -> list[dict[str, str]]:
    return [_turn("user", sentence), _turn("assistant", json.dumps(order))]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


if __name__ == "__main__":
    sys.stdout.writelines(json.dumps(row) + "\n" for row in rows())
