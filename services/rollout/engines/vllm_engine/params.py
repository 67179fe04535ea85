"""Parameters of vLLM's requests, and the reading of its outputs."""

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
    """The output of one request to vLLM.

    tokens: the sampled tokens.
    logprobs_T: their log-probs under the distribution drawn from.
    signals: the requested signals; None where vLLM mixed them up.
    finish: reason of the end.
    cached_tokens: tokens of the prompt that were not prefilled again.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs_T: Floats = field(default_factory=no_floats)
    signals: Signals | None = field(default_factory=Signals)
    finish: Finish = Finish.ABORTED
    cached_tokens: int = 0

    def first(self, count: int) -> "RequestOutput":
        """Return its first tokens, as an aborted output; truncated sampling has no top tokens."""
        return replace(
            self,
            tokens=self.tokens[:count],
            logprobs_T=self.logprobs_T[:count],
            finish=Finish.ABORTED,
        )


def check(request: Request) -> None:
    """Raise InvalidInput for signals of a distribution that vLLM does not draw from."""
    sampling, wanted = request.sampling, request.signals
    if sampling.bias:
        raise InvalidInput(
            "logit bias changes the log-probs that vLLM gives, and it has no others; use"
            " resources.engine: torch"
        )
    if wanted.semantic:
        raise InvalidInput(
            "signal `semantic` needs token embeddings, which vLLM hides; use resources.engine:"
            " torch"
        )
    if wanted.entropy:
        raise InvalidInput(
            "signal `entropy` runs over all tokens, and vLLM says the likeliest; use"
            " resources.engine: torch"
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
            "signal `top` is of the untempered distribution, and vLLM gives only the one drawn from"
            f" ({how}); set temperature 1, top_p 1 and top_k 0, or resources.engine: torch"
        )


def sampling_params(request: Request, eos: frozenset[int]) -> dict[str, Any]:
    """Return arguments of vLLM's SamplingParams that sample a segment.

    Greedy ones are never truncated: that changes no argmax.
    """
    sampling = request.sampling
    greedy = sampling.temperature == 0.0
    return {
        "temperature": sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "top_k": 0 if greedy else sampling.top_k,
        "max_tokens": sampling.max_new_tokens,
        "seed": request.draw_key & _SEED_BITS,
        "logprobs": request.signals.top,
        "stop": list(sampling.stop),
        "detokenize": bool(sampling.stop),
        "stop_token_ids": sorted(eos),
        **_forced_params(request),
    }


def _forced_params(request: Request) -> dict[str, Any]:
    """Return arguments for the log-probs of forced tokens, which are part of the prompt.

    They come with the segment where vLLM can compute them.
    """
    if not request.forced or not untempered(request.sampling.temperature):
        return {}
    return {"prompt_logprobs": request.signals.top, "skip_reading_prefix_cache": False}


def untempered(temperature: float) -> bool:
    """Return whether vLLM's prompt log-probs, which ignore the temperature, are those at it.

    Greedy sampling has log-probs at temperature 1.
    """
    return temperature in (0.0, 1.0)


def probe_params(temperature: float, token: int) -> dict[str, Any]:
    """Return arguments for the log-prob of a token, at a temperature, at the end of a prompt."""
    return {
        "temperature": temperature,
        "max_tokens": 1,
        "seed": 0,
        "detokenize": False,
        "logprob_token_ids": [token],
    }


def top_params(top: int) -> dict[str, Any]:
    """Return arguments for the likeliest tokens at the end of a prompt."""
    return {"temperature": 1.0, "max_tokens": 1, "logprobs": top, "detokenize": False}


def prompt_params(top: int) -> dict[str, Any]:
    """Return arguments for a prompt's log-probs, and the likeliest tokens at each place.

    vLLM reads no cache for them.
    """
    return {"temperature": 1.0, "max_tokens": 1, "prompt_logprobs": top, "detokenize": False}


def read_output(output: Any, top: int = 0) -> RequestOutput:
    """Read a finished output with flat log-probs."""
    completion = output.outputs[0]
    tokens, flat = list(completion.token_ids), completion.logprobs
    logprobs, signals = _entries(flat, 0, len(tokens), top) if tokens else (no_floats(), Signals())
    finishes = {"stop": Finish.STOP, "length": Finish.BOUNDARY}
    return RequestOutput(
        tokens=tokens,
        logprobs_T=logprobs,
        signals=signals,
        finish=finishes.get(completion.finish_reason, Finish.ABORTED),
        cached_tokens=output.num_cached_tokens or 0,
    )


def read_prompt(output: Any, first: int, top: int = 0) -> tuple[Floats, Signals]:
    """Return log-probs and signals of a prompt's tokens from `first` on, at temperature 1."""
    flat = output.prompt_logprobs
    logprobs, signals = _entries(flat, first, len(flat), top)
    return logprobs, signals or Signals()


def _entries(flat: Any, first: int, stop: int, top: int) -> tuple[Floats, Signals | None]:
    """Return log-probs of the tokens at places first..stop, and the `top` likeliest tokens there.

    At each place the token's own entry comes first, then those of the likeliest. Signals are None
    if vLLM mixed them up: in a step with a request for the log-prob of a given token, it returns
    only that token's, in all outputs.
    """
    starts, ends = flat.start_indices[first:stop], flat.end_indices[first:stop]
    logprobs = np.array([flat.logprobs[at] for at in starts], np.float32)
    if not top:
        return logprobs, Signals()
    ids = [flat.token_ids[at + 1 : at + 1 + top] for at in starts]
    values = [flat.logprobs[at + 1 : at + 1 + top] for at in starts]
    complete = all(end - at == top + 1 for at, end in zip(starts, ends, strict=True))
    if not complete or not np.isfinite(values).all():
        return logprobs, None
    return logprobs, Signals(np.array(ids, np.int32), np.array(values, np.float32))


def sampled_logprobs(request: Request, output: RequestOutput) -> Floats:
    """Return log-probs of the distribution that a segment's tokens were drawn from.

    Empty where they are the policy's.
    """
    sampling = request.sampling
    if not request.forced and not sampling.truncated:
        return no_floats()
    # A greedy draw is from a distribution over a single token.
    certain = sampling.truncated and not sampling.temperature
    sampled = np.zeros(len(output.tokens), np.float32) if certain else output.logprobs_T
    return np.concatenate((np.zeros(len(request.forced), np.float32), sampled))


def reached(output: Any, first: int) -> bool:
    """Return whether a prompt's log-probs from `first` on are valid.

    Those of a cached prefix are garbage.
    """
    return output.prompt_logprobs is not None and (output.num_cached_tokens or 0) < first


def read_probe(output: Any, token: int) -> float:
    """Return the log-prob of a token in a probe's output."""
    flat = output.outputs[0].logprobs
    return float(flat.logprobs[flat.token_ids.index(token)])
