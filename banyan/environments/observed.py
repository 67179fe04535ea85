"""Observation of an answer: what a verifier, and a simulation, says of a step."""

from collections.abc import Mapping
from typing import Any

from banyan.digest import blake, canonical
from banyan.environments.observation import Observation
from banyan.plugins.environment import Answer

MOST_ANSWER = 1 << 20  # characters that are read of an answer


def observed(
    environment: Any, settings: Mapping[str, Any], action: bytes, before: bytes, answer: Answer
) -> Observation:
    """Return the observation of an answer that is shown as a whole.

    environment: who answered; its name and version are recorded.
    settings: the recipe's settings of it.
    action: id of the action's last segment.
    before: the state that the action found.
    """
    text = answer_digest(answer)
    return Observation(
        environment=environment.name,
        version=environment.version,
        settings=blake(canonical(dict(settings))),
        action=action,
        answer=text,
        shown=text,
        outcome=answer.outcome,
        reward=answer.reward,
        done=answer.done,
        anchor=answer.anchor,
        before=blake(before),
        after=blake(answer.state),
        effect=answer.effect,
    )


def answer_digest(answer: Answer) -> bytes:
    """Return the digest of the part of an answer's text that is read."""
    return text_digest(answer.text[:MOST_ANSWER])


def text_digest(text: str) -> bytes:
    """Return the digest of a text; lone surrogates count as question marks."""
    return blake(text.encode("utf-8", "replace"))
