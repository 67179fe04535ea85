"""What the scripted engine samples from: a known distribution of the next character, given prompt and answer so far.

Sums and products in the prompt's last line get the right answer with probability `accuracy` (plus `gain` per policy step,
at most 1) and right + 1 or right + 2 otherwise; any other prompt is continued by a chain over characters.
A state of the chain is how the answer so far ends: the longest key that it ends with counts. Example: a's, after three of
which comes a b or the end: {"": {a: 1}, "aaa": {b: 0.5, "": 0.5}, "b": {"": 1}}.
"""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from services.rollout.engines.scripted.tokenizer import CHARACTERS, END, Alphabet

_DIGITS = 100  # of a number; longer ones are no question, and Python itself refuses those of more than 4,300
_LONGEST = 2 * _DIGITS + len(" + ") + 1  # of a question, and the character before it
# Only the end of a prompt is looked at: from the start, a prompt of digits would be searched once for each of them.
_ASKED = re.compile(rf"(?:^|\D)(\d{{1,{_DIGITS}}}) ([+*]) (\d{{1,{_DIGITS}}})$")
_ALPHABET = Alphabet()
Chain = Mapping[str, Mapping[str, float]]
Question = tuple[int, str, int]


@dataclass(frozen=True)
class Script:
    """Settings of the scripted engine's distribution. In `chain`, "" as a key is any other state, as a value the end."""

    accuracy: float = 0.3
    """Probability of the right answer to a sum or product at policy step 0."""
    gain: float = 0.0
    """What each policy step adds to it."""
    chain: Chain = field(default_factory=lambda: {"": {"a": 0.4, "b": 0.4, "": 0.2}})
    """Next character by how the answer ends: the longest key that fits."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Score of the head by how an answer of the chain ends: the longest key that fits. Without any, it has no head there."""
    sharpness: float = 1.0
    """What the head knows of a sum or product. 1: the chance of the right answer after its characters so far. 0: that before
    the first one. In between: a mean of both."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.accuracy <= 1.0:
            raise ValueError(f"accuracy must lie in 0..1, got {self.accuracy!r}")
        if not 0.0 <= self.sharpness <= 1.0 or not all(
            0.0 <= p <= 1.0 for p in self.scores.values()
        ):
            raise ValueError(
                f"sharpness {self.sharpness!r} and scores {dict(self.scores)} must lie in 0..1"
            )
        for state, following in self.chain.items():
            if abs(sum(following.values()) - 1.0) > 1e-9 or min(following.values()) < 0.0:
                raise ValueError(
                    f"chain[{state!r}] must be probabilities that sum to 1, got {dict(following)}"
                )
            unknown = [c for c in following if len(c) > 1 or c not in CHARACTERS]
            if unknown:
                raise ValueError(
                    f"chain[{state!r}] names {unknown[0]!r}, which is not one character of the alphabet"
                )
        if "" not in self.chain:
            raise ValueError('chain needs the key "" for all other states')

    def state(self, prompt: str, answer: str) -> Hashable:
        """What the next character's distribution depends on, beside the policy's step."""
        question = _question(prompt)
        return self._ending(answer) if question is None else (question, answer)

    def probabilities(self, prompt: str, answer: str, step: int) -> npt.NDArray[np.float64]:
        """Of each next token."""
        p = np.zeros(_ALPHABET.size)
        for character, mass in self._following(prompt, answer, step).items():
            p[_ALPHABET.encode(character)[0] if character else END] += mass
        return np.asarray(p / p.sum())

    def score(self, prompt: str, answer: str, step: int) -> float | None:
        """What the head says of an answer so far; None where there is none."""
        question = _question(prompt)
        if question is None:
            return next(
                (
                    self.scores[answer[at:]]
                    for at in range(len(answer) + 1)
                    if answer[at:] in self.scores
                ),
                None,
            )
        texts = self._answers(*question, step)
        right, *_ = texts
        alive = sum(mass for text, mass in texts.items() if text.startswith(answer))
        after = texts[right] / alive if alive and right.startswith(answer) else 0.0
        return texts[right] + self.sharpness * (after - texts[right])

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(state) for state in self.chain}, reverse=True)

    def _ending(self, answer: str) -> str:
        """The longest key of the chain that the answer ends with; an answer shorter than a key does not."""
        endings = (answer[len(answer) - n :] for n in self._lengths if n <= len(answer))
        return next(ending for ending in endings if ending in self.chain)

    def _following(self, prompt: str, answer: str, step: int) -> Mapping[str, float]:
        question = _question(prompt)
        if question is None:
            return self.chain[self._ending(answer)]
        texts = self._answers(*question, step)
        alive = {
            text: mass for text, mass in texts.items() if text.startswith(answer) and mass > 0.0
        }
        following: dict[str, float] = {}
        for text, mass in alive.items():
            character = text[len(answer) : len(answer) + 1]
            following[character] = following.get(character, 0.0) + mass
        return following or {"": 1.0}

    def _answers(self, a: int, operator: str, b: int, step: int) -> dict[str, float]:
        right = a + b if operator == "+" else a * b
        p = min(1.0, self.accuracy + self.gain * step)
        return {str(right): p, str(right + 1): (1 - p) / 2, str(right + 2): (1 - p) / 2}


@lru_cache(maxsize=4096)
def _question(prompt: str) -> Question | None:
    """The sum or product that a prompt ends with."""
    found = _ASKED.search(prompt.rstrip("\n").rstrip(" =?.")[-_LONGEST:])
    return None if found is None else (int(found[1]), found[2], int(found[3]))
