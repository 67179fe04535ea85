"""The distribution of the scripted engine: known for each next character.

It depends on the prompt and the answer so far. Sums and products in the prompt's last line get the
right answer with probability `accuracy` (plus `gain` per policy step, at most 1) and right + 1 or
right + 2 otherwise; any other prompt is continued by a chain over characters. The state of the
chain is the longest key with which the answer so far ends. Example: {"": {a: 1}, "aaa": {b: 0.5,
"": 0.5}, "b": {"": 1}} writes a's; after three of them comes a b or the end.
"""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.rollout.engines.scripted.tokenizer import CHARACTERS, END, CharacterTokenizer

# Most digits of a number in a question; Python itself refuses numbers of more than 4,300.
_DIGITS = 100
# Longest question, with the character before it.
_LONGEST = 2 * _DIGITS + len(" + ") + 1
# Only the end of a prompt is searched: in a prompt of digits a search restarts at each digit.
_QUESTION = re.compile(rf"(?:^|\D)(\d{{1,{_DIGITS}}}) ([+*]) (\d{{1,{_DIGITS}}})$")
_TOKENIZER = CharacterTokenizer()
Chain = Mapping[str, Mapping[str, float]]


class Question(NamedTuple):
    """A sum or product of two numbers."""

    left: int
    operator: str
    right: int

    @property
    def answer(self) -> int:
        if self.operator == "+":
            return self.left + self.right
        return self.left * self.right


@dataclass(frozen=True)
class Script:
    """Settings of the scripted engine's distribution."""

    accuracy: float = 0.3
    """Probability of the right answer to a sum or product at policy step 0."""
    gain: float = 0.0
    """Increase of the accuracy per policy step."""
    chain: Chain = field(default_factory=lambda: {"": {"a": 0.4, "b": 0.4, "": 0.2}})
    """Probabilities of the next character by the end of the answer: the longest matching key
    counts.

    The key "" matches any other state; the next character "" is the end.
    """
    scores: Mapping[str, float] = field(default_factory=dict)
    """Head score by the end of an answer of the chain: the longest matching key counts.

    Without any match there is no score.
    """
    sharpness: float = 1.0
    """Knowledge of the head about a sum or product.

    1: the chance of the right answer after its characters so far; 0: the chance before the first
    one; in between, a weighted mean of both.
    """

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
                    f"chain[{state!r}] names {unknown[0]!r}, which is not one character of the"
                    " alphabet"
                )
        if "" not in self.chain:
            raise ValueError('chain needs the key "" for all other states')

    def state(self, prompt: str, answer: str) -> Hashable:
        """Return a key of the next character's distribution, the policy's step aside."""
        question = _question(prompt)
        return self._ending(answer) if question is None else (question, answer)

    def probabilities(self, prompt: str, answer: str, step: int) -> npt.NDArray[np.float64]:
        """Return the probability of each next token."""
        p = np.zeros(_TOKENIZER.size)
        for character, mass in self._following(prompt, answer, step).items():
            p[_TOKENIZER.encode(character)[0] if character else END] += mass
        return np.asarray(p / p.sum())

    def score(self, prompt: str, answer: str, step: int) -> float | None:
        """Return the head's score of an answer so far; None where there is none."""
        question = _question(prompt)
        if question is None:
            endings = (answer[at:] for at in range(len(answer) + 1))
            return next((self.scores[end] for end in endings if end in self.scores), None)
        texts = self._answers(question, step)
        right = str(question.answer)
        alive = sum(mass for text, mass in texts.items() if text.startswith(answer))
        after = texts[right] / alive if alive and right.startswith(answer) else 0.0
        return texts[right] + self.sharpness * (after - texts[right])

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(state) for state in self.chain}, reverse=True)

    def _ending(self, answer: str) -> str:
        """Return the longest key of the chain with which the answer ends."""
        endings = (answer[len(answer) - n :] for n in self._lengths if n <= len(answer))
        return next(ending for ending in endings if ending in self.chain)

    def _following(self, prompt: str, answer: str, step: int) -> Mapping[str, float]:
        question = _question(prompt)
        if question is None:
            return self.chain[self._ending(answer)]
        texts = self._answers(question, step)
        alive = {
            text: mass for text, mass in texts.items() if text.startswith(answer) and mass > 0.0
        }
        following: dict[str, float] = {}
        for text, mass in alive.items():
            character = text[len(answer) : len(answer) + 1]
            following[character] = following.get(character, 0.0) + mass
        return following or {"": 1.0}

    def _answers(self, question: Question, step: int) -> dict[str, float]:
        """Return the possible answers, the right one first, with their probabilities."""
        right = question.answer
        p = min(1.0, self.accuracy + self.gain * step)
        return {str(right): p, str(right + 1): (1 - p) / 2, str(right + 2): (1 - p) / 2}


@lru_cache(maxsize=4096)
def _question(prompt: str) -> Question | None:
    """Return the sum or product that a prompt ends with, if any."""
    match = _QUESTION.search(prompt.rstrip("\n").rstrip(" =?.")[-_LONGEST:])
    if match is None:
        return None
    return Question(int(match[1]), match[2], int(match[3]))
