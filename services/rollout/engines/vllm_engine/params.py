"""What is asked of vLLM for a segment, and what its outputs say. Pure, but for vLLM's own types."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from banyan.errors import InvalidInput
from banyan.segment import Finish, Floats
from banyan.signals import Signals
from services.rollout.engines.port import Request, no_floats

_SEED_BITS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class RequestOutput:
    """What one request to vLLM gave: log-probs are of the distribution drawn from."""

    tokens: list[int] = field(default_factory=list)
    logprobs_T: Floats = field(default_factory=no_floats)
    signals: Signals | None = field(default_factory=Signals)  # None: vLLM mixed them up
    finish: Finish = Finish.ABORTED
    cached_tokens: int = 0

    def first(self, count: int) -> "RequestOutput":
        """What a cut left of it; truncated sampling says no likeliest tokens."""
        return replace(
            self,
            tokens=self.tokens[:count],
            logprobs_T=self.logprobs_T[:count],
            finish=Finish.ABORTED,
        )


def check(request: Request) -> None:
    """Raises InvalidInput for what vLLM cannot say: signals of a distribution other than the one drawn from."""
    sampling, wanted = request.sampling, request.signals
    if sampling.bias:
        raise InvalidInput(
            "logit bias changes the log-probs that vLLM gives, and it has no others; use resources.engine: torch"
        )
    if wanted.semantic:
        raise InvalidInput(
            "signal `semantic` needs token embeddings, which vLLM hides; use resources.engine: torch"
        )
    if wanted.entropy:
        raise InvalidInput(
            "signal `entropy` runs over all tokens, and vLLM says the likeliest; use resources.engine: torch"
        )
    if wanted.head:
        raise InvalidInput(
            "signal `head` needs the model's states, which vLLM hides; use resources.engine: torch"
        )
    if wanted.top and (
        not untempered(sampling.temperature) or (sampling.temperature and sampling.truncated)
    ):
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
        **_of_forced(request),
    }


def _of_forced(request: Request) -> dict[str, Any]:
    """Forced tokens are part of the prompt; what the policy says of them comes with the segment, where vLLM can say it."""
    if not request.forced or not untempered(request.sampling.temperature):
        return {}
    return {"prompt_logprobs": request.signals.top, "skip_reading_prefix_cache": False}


def untempered(temperature: float) -> bool:
    """Whether a temperature's log-probs are those that vLLM gives for a prompt, which know none. Greedy ones are at 1."""
    return temperature in (0.0, 1.0)


def probe_params(temperature: float, token: int) -> dict[str, Any]:
    """Arguments that ask for the log-prob of a token, at a temperature, at the end of a prompt."""
    return {
        "temperature": temperature,
        "max_tokens": 1,
        "seed": 0,
        "detokenize": False,
        "logprob_token_ids": [token],
    }


def top_params(top: int) -> dict[str, Any]:
    """Arguments that ask for the likeliest tokens at the end of a prompt."""
    return {"temperature": 1.0, "max_tokens": 1, "logprobs": top, "detokenize": False}


def prompt_params(top: int) -> dict[str, Any]:
    """Arguments that ask for a prompt's log-probs, and the likeliest tokens at each place; vLLM reads no cache for them."""
    return {"temperature": 1.0, "max_tokens": 1, "prompt_logprobs": top, "detokenize": False}


def said(output: Any, top: int = 0) -> RequestOutput:
    """Reads a finished RequestOutput with flat log-probs."""
    one = output.outputs[0]
    tokens, flat = list(one.token_ids), one.logprobs
    logprobs, signals = _entries(flat, 0, len(tokens), top) if tokens else (no_floats(), Signals())
    finish = {"stop": Finish.STOP, "length": Finish.BOUNDARY}.get(one.finish_reason, Finish.ABORTED)
    return RequestOutput(tokens, logprobs, signals, finish, output.num_cached_tokens or 0)


def of_prompt(output: Any, first: int, top: int = 0) -> tuple[Floats, Signals]:
    """What there is of a prompt's tokens from `first` on, at temperature 1."""
    flat = output.prompt_logprobs
    found = _entries(flat, first, len(flat), top)
    return found[0], found[1] or Signals()


def _entries(flat: Any, first: int, stop: int, top: int) -> tuple[Floats, Signals | None]:
    """Of each place the taken token's entry comes first, then those of the likeliest.

    None for signals that are not what was asked for: a request for the log-prob of given tokens that vLLM runs in the
    same step makes it say only those, in all answers.
    """
    starts, ends = flat.start_indices[first:stop], flat.end_indices[first:stop]
    logprobs = np.array([flat.logprobs[at] for at in starts], np.float32)
    if not top:
        return logprobs, Signals()
    ids = [flat.token_ids[at + 1 : at + 1 + top] for at in starts]
    values = [flat.logprobs[at + 1 : at + 1 + top] for at in starts]
    if (
        any(end - at != top + 1 for at, end in zip(starts, ends, strict=True))
        or not np.isfinite(values).all()
    ):
        return logprobs, None
    return logprobs, Signals(np.array(ids, np.int32), np.array(values, np.float32))


def drawn_logprobs(request: Request, said: RequestOutput) -> Floats:
    """Log-probs of the distribution that a segment's tokens were drawn from, where it says more than the policy's."""
    sampling = request.sampling
    if not request.forced and not sampling.truncated:
        return no_floats()
    certain = (
        sampling.truncated and not sampling.temperature
    )  # a greedy draw is of a distribution with one token
    drawn = np.zeros(len(said.tokens), np.float32) if certain else said.logprobs_T
    return np.concatenate((np.zeros(len(request.forced), np.float32), drawn))


def reached(output: Any, first: int) -> bool:
    """Whether a prompt's log-probs from `first` on were computed: those of a cached prefix are garbage."""
    return output.prompt_logprobs is not None and (output.num_cached_tokens or 0) < first


def of_probe(output: Any, token: int) -> float:
    """The log-prob of a token in a probe's answer."""
    flat = output.outputs[0].logprobs
    return float(flat.logprobs[flat.token_ids.index(token)])
