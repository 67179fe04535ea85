"""Scorers that ask a model behind an address: their pure half, and their questions."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from banyan.plugins.filter import Row, Scored, Unscorable


@dataclass(frozen=True, slots=True)
class Question:
    """Question to an endpoint: one reply of a chat.

    messages: role and content of each message
    """

    messages: tuple[tuple[str, str], ...]


class Asker(Protocol):
    """Scorer that asks an OpenAI-compatible endpoint. Pure; the verifier asks.

    base_url: address of the endpoint, such as http://127.0.0.1:8000/v1
    model: name of the model there
    temperature: of its sampling
    max_tokens: of a reply
    extra: further fields of a request; None leaves a field out
    seconds: time of a score, with all repetitions
    cache: scores that are kept, so that the same question is not asked again; 0 for none
    most_requests: requests of a run; 0 for no bound
    most_tokens: tokens of a run, prompts and replies; 0 for no bound
    """

    name: str
    version: str
    base_url: str
    model: str
    temperature: float
    max_tokens: int
    extra: Mapping[str, object]
    seconds: float
    cache: int
    most_requests: int
    most_tokens: int

    def ask(
        self, completion: str, row: Row
    ) -> Generator[Sequence[Question], Sequence[str], Scored | Unscorable]:
        """Yield questions, all to be asked at once, for the texts of their replies; return the
        score.
        """
        ...


# Banyan's own, which run in the verifier's process and alone may ask from there.
ASKERS: Mapping[str, str] = {"judge": "methods.filter.judge:Judge"}
