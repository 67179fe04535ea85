"""When a treepo path ends, and where a new one may start inside it (card 2). Text is read, never made, here."""

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


@functools.lru_cache(4096)  # a plan replays its tree, so it asks for the same segments again
def repeats(text: str, piece: int = _PIECE, times: int = _TIMES) -> bool:
    """Whether some `piece` characters in a row occur at least `times` times (overlapping ones count)."""
    seen: dict[str, int] = {}
    for at in range(len(text) - piece + 1):
        part = text[at : at + piece]
        seen[part] = seen.get(part, 0) + 1
        if seen[part] >= times:
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
    """Why the path ends here, in the card's order of checks; None if it goes deeper."""
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
    """How many tokens of a finished path its new branches keep; always fewer than it has."""
    blocks = -(-len(logprobs_T) // segment)
    if policy == "random":
        return (blocks - 1 - rng.below(blocks, "treepo.cut", wave)) * segment
    if policy == "argmin_logprob":
        return int(logprobs_T.argmin())
    if (
        policy == "block_softmax"
    ):  # unlikely blocks are tried again more often, as in the budget's plain weights
        means = [float(logprobs_T[b * segment : (b + 1) * segment].mean()) for b in range(blocks)]
        return _drawn(softmax([-m for m in means]), rng.uniform("treepo.cut", wave)) * segment
    return 0


def _drawn(weights: Sequence[float], u: float) -> int:
    for index, weight in enumerate(weights):
        u -= weight
        if u < 0:
            return index
    return len(weights) - 1
