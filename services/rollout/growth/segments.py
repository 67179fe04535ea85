"""How what an engine returned divides into segments: forced tokens first, then what was sampled. Pure."""

import numpy as np

from banyan.segment import Floats
from services.rollout.engines.port import Sampled, no_floats


def spans(forced: int, tokens: int) -> list[tuple[int, int]]:
    """Where the segments of `tokens` tokens begin and end, of which the first `forced` are."""
    return [(a, b) for a, b in ((0, forced), (forced, tokens)) if b > a]


def sampled(one: Sampled, start: int, stop: int, forced: bool, truncated: bool) -> Floats:
    """Log-probs of the distribution drawn from. A forced token was sure to come; elsewhere only where it was truncated."""
    if forced:
        return np.zeros(stop - start, np.float32)
    return one.sampled_logprobs_T[start:stop] if truncated else no_floats()
