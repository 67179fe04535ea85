"""What is asked of vLLM for a segment, and what its outputs say. Pure, but for vLLM's own types."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from banyan.errors import InvalidInput
from banyan.segment import Finish, Floats, Sampling
from banyan.signals import Signals
from services.rollout.engines.port import Request, no_floats

_SEED_BITS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """What one request to vLLM gave: log-probs are of the distribution drawn from."""

    tokens: list[int] = field(default_factory=list)
    logprobs_T: Floats = field(default_factory=no_floats)
    signals: Signals = field(default_factory=Signals)
    finish: Finish = Finish.ABORTED
    cached_tokens: int = 0


def check(request: Request) -> None:
    """Raises InvalidInput for what vLLM cannot say: signals of a distribution other than the one drawn from."""
    sampling, wanted = request.sampling, request.signals
    if wanted.semantic:
        raise InvalidInput("signal `semantic` needs token embeddings, which vLLM hides; use resources.engine: torch")
    if wanted.top and (sampling.temperature not in (0.0, 1.0) or (sampling.temperature and sampling.truncated)):
        how = f"temperature {sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}"
        raise InvalidInput(
            f"signal `top` is of the untempered distribution, and vLLM gives only the one drawn from ({how}); "
            "set temperature 1, top_p 1 and top_k 0, or resources.engine: torch"
        )


def sampling_params(request: Request, eos: frozenset[int]) -> dict[str, Any]:
    """Arguments of vLLM's SamplingParams that sample a segment. Greedy ones are never truncated: it changes no argmax."""
    s = request.sampling
    greedy = s.temperature == 0.0
    return {
        "temperature": s.temperature,
        "top_p": 1.0 if greedy else s.top_p,
        "top_k": 0 if greedy else s.top_k,
        "max_tokens": s.max_new_tokens,
        "seed": request.draw_key & _SEED_BITS,
        "logprobs": request.signals.top,
        "stop": list(s.stop),
        "detokenize": bool(s.stop),
        "stop_token_ids": sorted(eos),
    }


def probe_params(sampling: Sampling, top: int = 0, token: int | None = None) -> dict[str, Any]:
    """Arguments that ask for one position's log-probs at a temperature: of a token, or of the likeliest."""
    which: dict[str, Any] = {"logprobs": top} if token is None else {"logprob_token_ids": [token]}
    return {"temperature": sampling.temperature, "max_tokens": 1, "seed": 0, "detokenize": False, **which}


def said(output: Any, top: int = 0) -> Said:
    """Reads a finished RequestOutput with flat log-probs."""
    one = output.outputs[0]
    tokens, flat = list(one.token_ids), one.logprobs
    starts = flat.start_indices if flat is not None else []
    logprobs = [flat.logprobs[at] for at in starts[: len(tokens)]]
    signals = _top(flat, starts[: len(tokens)], top) if top and tokens else Signals()
    finish = {"stop": Finish.STOP, "length": Finish.BOUNDARY}.get(one.finish_reason, Finish.ABORTED)
    return Said(tokens, np.array(logprobs, np.float32), signals, finish, output.num_cached_tokens or 0)


def _top(flat: Any, starts: list[int], top: int) -> Signals:
    """The sampled token's entry comes first, then those of the likeliest."""
    ids = [flat.token_ids[at + 1 : at + 1 + top] for at in starts]
    logprobs = [flat.logprobs[at + 1 : at + 1 + top] for at in starts]
    return Signals(np.array(ids, np.int32), np.array(logprobs, np.float32))


def drawn_logprobs(request: Request, said: Said) -> Floats:
    """Log-probs of the distribution that a segment's tokens were drawn from, where it says more than the policy's."""
    sampling = request.sampling
    if not request.forced and not sampling.truncated:
        return no_floats()
    certain = sampling.truncated and not sampling.temperature  # a greedy draw is of a distribution with one token
    drawn = np.zeros(len(said.tokens), np.float32) if certain else said.logprobs_T
    return np.concatenate((np.zeros(len(request.forced), np.float32), drawn))


def of_probe(output: Any, token: int) -> float:
    """The log-prob of a token in a probe's answer."""
    flat = output.outputs[0].logprobs
    return float(flat.logprobs[flat.token_ids.index(token)])


def of_prompt(output: Any, first: int) -> Floats:
    """Log-probs at temperature 1 of a prompt's tokens from `first` on."""
    flat = output.prompt_logprobs
    return np.array([flat.logprobs[at] for at in flat.start_indices[first:]], np.float32)
