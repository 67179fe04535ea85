"""Ends of treepo's paths, and starts of new ones inside them. Text is read, never made, here."""

import functools
import re
from collections.abc import Callable, Sequence

from banyan.draws import Draws
from banyan.segment import Floats
from methods.generate.treepo.budget import softmax

FINISHED = ("eos", "boxed", "boxed_and_eos")
CUTS = ("random", "argmin_logprob", "block_softmax", "from_start")
_PIECE, _TIMES = 32, 8  # characters, occurrences
_BOXED = re.compile(r"\\boxed\s*\{")


@functools.lru_cache(4096)  # a plan replays its tree and so repeats its calls
def repeats(text: str, piece: int = _PIECE, times: int = _TIMES) -> bool:
    """Return whether any `piece` characters in a row occur `times` times or more, also
    overlapping."""
    occurrences: dict[str, int] = {}
    for at in range(len(text) - piece + 1):
        part = text[at : at + piece]
        occurrences[part] = occurrences.get(part, 0) + 1
        if occurrences[part] >= times:
            return True
    return False


def ending(
    path_text: Callable[[], str],
    segment_text: str,
    stopped: bool,
    full: bool,
    deep: bool,
    finished: str,
    repetition_first: bool,
) -> str | None:
    """Return the reason why the path ends here, in the published order of checks; None if it
    goes on."""
    if repetition_first and repeats(segment_text):
        return "repetition"
    if (
        finished != "eos"
        and (stopped or finished == "boxed")
        and _BOXED.search(path_text()) is not None
    ):
        return "finished"
    for reason, holds in (("stop", stopped), ("length", full), ("depth", deep)):
        if holds:
            return reason
    return "repetition" if repeats(segment_text) else None


def cut(policy: str, logprobs_T: Floats, segment: int, rng: Draws, wave: int) -> int:
    """Return the number of tokens of a finished path that its new branches keep: fewer than all."""
    blocks = -(-len(logprobs_T) // segment)
    if policy == "random":
        return (blocks - 1 - rng.below(blocks, "treepo.cut", wave)) * segment
    if policy == "argmin_logprob":
        return int(logprobs_T.argmin())
    # Unlikely blocks are tried again more often, as in the budget's plain weights.
    if policy == "block_softmax":
        means = [float(logprobs_T[b * segment : (b + 1) * segment].mean()) for b in range(blocks)]
        return _drawn(softmax([-m for m in means]), rng.uniform("treepo.cut", wave)) * segment
    return 0


def _drawn(weights: Sequence[float], u: float) -> int:
    for index, weight in enumerate(weights):
        u -= weight
        if u < 0:
            return index
    return len(weights) - 1
