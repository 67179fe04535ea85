"""Refusal, at submission, of requests that an engine could never run, with the remedy."""

from banyan.errors import InvalidInput
from services.rollout.engines.port import NO_ROOM, Request
from services.rollout.engines.torch_engine.kv.kv_budget import KvBudget
from services.rollout.engines.torch_engine.scheduling.branches import longest_path


def check(request: Request, kv_budget: KvBudget, vocabulary: int) -> None:
    """Raise InvalidInput for such a request; its reason says whether another node could run it."""
    total, prefix, limits = longest_path(request), len(request.prefix_P), kv_budget.limits
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
            f"logit bias of token {request.sampling.bias[-1][0]}, which a vocabulary of"
            f" {vocabulary} has not"
        )
    # No reason: every node has the same model, so none could run it.
    if 0 < limits.context < total:
        raise InvalidInput(
            f"a path of {total} tokens ({prefix} of prompt and trunk, {total - prefix} new) is"
            f" longer than the model's context of {limits.context} (max_position_embeddings);"
            " shorten the prompt or generate.max_new_tokens"
        )
    # A shared prefix, and one computed in chunks, needs one page more.
    if not kv_budget.fits(kv_budget.pages.of(total) + 1, 0):
        raise InvalidInput(
            f"a path of {total} tokens cannot fit into resources.kv_tokens={limits.kv_tokens};"
            " raise it",
            reason=NO_ROOM,
        )
