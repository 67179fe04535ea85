"""What a node needs of a TreeSpec to grow it, checked once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import TreePolicy, width_of
from banyan.segment import Sampling
from banyan.v1 import tree_pb2
from services.rollout.growth.return_reasons import NO_PLUGIN


@dataclass(frozen=True, slots=True)
class GrowSpec:
    """One tree's assignment. `policy` is built from the spec's own settings, so evaluations may grow otherwise."""

    tree_id: bytes
    run_id: str
    seed: int
    messages: tuple[Mapping[str, str], ...]
    policy: TreePolicy
    max_path_tokens: int
    sampling: Sampling
    order: tuple[int, int]  # group ordinal, tree index: logical order within a wave
    min_step: int = 0
    max_step: int | None = None
    traceparent: str = ""
    scorers: int = 1  # that score each leaf
    score_deadline_s: float = 120.0
    width: int = 1  # branches to expect, for deciding how many trees a node takes
    spare: bool = False  # its group may come to do without it while it grows
    name: str = ""  # of the policy, as the recipe names it

    @property
    def said(self) -> str:
        """The policy, in a message for people."""
        return f"generate.policy {self.name}"

    def allows(self, step: int) -> bool:
        """Whether a policy of this step may sample the tree."""
        return self.min_step <= step and (self.max_step is None or step <= self.max_step)


def from_wire(spec: tree_pb2.TreeSpec) -> GrowSpec:
    """Reads a TreeSpec. Raises InvalidInput that names what is unusable."""
    try:
        generate: dict[str, Any] = json.loads(spec.generate_json)
        messages = tuple(json.loads(spec.messages_json))
        settings = generate.get("settings", {})
        _find(generate["name"])
        policy = registry.build("generate", generate["name"], settings)
        sampling = Sampling(
            temperature=float(generate.get("temperature", 1.0)),
            top_p=float(generate.get("top_p", 1.0)),
            top_k=int(generate.get("top_k", 0)),
            max_new_tokens=int(generate["max_new_tokens"]),
            stop=tuple(generate.get("stop", ())),
            bias=tuple(
                (int(token), float(added)) for token, added in generate.get("logit_bias", ())
            ),
            seed=spec.seed,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput) and error.reason == NO_PLUGIN:
            raise
        raise InvalidInput(
            f"tree {spec.tree_id.hex()[:12]} cannot be grown: its spec is unusable: {error!r}"
        ) from None
    return GrowSpec(
        tree_id=spec.tree_id,
        run_id=spec.run_id,
        seed=spec.seed,
        messages=messages,
        policy=policy,
        max_path_tokens=sampling.max_new_tokens,
        sampling=sampling,
        order=(spec.group_ordinal, spec.index),
        min_step=spec.min_step,
        max_step=spec.max_step if spec.HasField("max_step") else None,
        traceparent=spec.traceparent,
        scorers=len(spec.scorers),
        score_deadline_s=spec.score_deadline_ms / 1000,
        width=width_of(policy),
        spare=spec.group_take > 0 or spec.HasField("last_step"),
        name=generate["name"],
    )


def _find(name: str) -> None:
    """Raises InvalidInput with NO_PLUGIN where this node does not have the tree policy."""
    try:
        registry.find("generate", name)
    except (ImportError, InvalidInput) as error:
        raise InvalidInput(str(error), reason=NO_PLUGIN) from None
