"""Bounds of the vllm engine, and the refusal of requests beyond them."""

from dataclasses import dataclass

from banyan.errors import InvalidInput
from services.rollout.engines.port import NO_ROOM, Request


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the engine.

    kv_tokens: capacity of the KV cache.
    max_branches: segments that run at once.
    context: tokens of the model's longest path, 0 for any.
    """

    kv_tokens: int
    max_branches: int
    context: int = 0

    def check(self, request: Request) -> None:
        """Raise InvalidInput for a request that could never run."""
        prefix = len(request.prefix_P) + len(request.forced)
        new = request.sampling.max_new_tokens
        if not len(request.prefix_P) or new < 1:
            raise InvalidInput(
                "a request needs a prefix of at least one token and room for at least one new one"
            )
        if 0 < self.context < prefix + new:
            raise InvalidInput(
                f"a path of {prefix + new} tokens ({prefix} of prompt and trunk, {new} new) is"
                f" longer than the model's context of {self.context} (max_position_embeddings);"
                " shorten the prompt or generate.max_new_tokens"
            )
        if prefix + new > self.kv_tokens:
            raise InvalidInput(
                f"a path of {prefix + new} tokens cannot fit into"
                f" resources.kv_tokens={self.kv_tokens}; raise it",
                reason=NO_ROOM,
            )
