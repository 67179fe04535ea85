"""What an engine can never run is refused when it is submitted, with the remedy."""

from banyan.errors import InvalidInput
from services.rollout.engines.port import NO_ROOM, Request
from services.rollout.engines.torch_engine.kv.kv_budget import Memory
from services.rollout.engines.torch_engine.scheduling.branches import need


def check(request: Request, memory: Memory, vocabulary: int) -> None:
    """Raises InvalidInput; its reason says whether another node could run it."""
    total, prefix, limits = need(request), len(request.prefix_P), memory.limits
    if not prefix or request.sampling.max_new_tokens < 1:
        raise InvalidInput(
            "a request needs a prefix of at least one token and room for at least one new one"
        )
    if any(not 0 <= token < vocabulary for token in request.forced):
        raise InvalidInput(
            f"forced tokens {request.forced} are not all in the vocabulary of {vocabulary}"
        )
    if any(token >= vocabulary for token, _ in request.sampling.bias):
        raise InvalidInput(
            f"logit bias of token {request.sampling.bias[-1][0]}, which a vocabulary of {vocabulary} has not"
        )
    if (
        0 < limits.context < total
    ):  # no node has another model, so there is no reason that only this one knows
        raise InvalidInput(
            f"a path of {total} tokens ({prefix} of prompt and trunk, {total - prefix} new) is longer than the model's"
            f" context of {limits.context} (max_position_embeddings); shorten the prompt or generate.max_new_tokens"
        )
    if not memory.fits(
        memory.pages.of(total) + 1, 0
    ):  # one more where a prefix is shared, or computed in chunks
        message = f"a path of {total} tokens cannot fit into resources.kv_tokens={limits.kv_tokens}; raise it"
        raise InvalidInput(message, reason=NO_ROOM)
