"""The assignment of a tree: the part of a TreeSpec that a node needs, checked once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import TreePolicy, traits
from banyan.plugins.traits import PolicyTraits
from banyan.reward import EQUAL, Weights
from banyan.segment import Sampling
from banyan.v1 import tree_pb2
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from banyan.wire.weights import weights_of
from services.rollout.engines.turns import Turns
from services.rollout.growth.return_reasons import NO_PLUGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowSpec:
    """The assignment of one tree.

    tree_id: the tree.
    run_id: its run.
    seed: seed of all its draws.
    messages: the conversation that is its prompt.
    tree_policy: plans it, built from the spec's own settings: evaluations may grow otherwise.
    max_path_tokens: tokens that a path may hold after the prompt.
    sampling: the sampling that the recipe wants; plans may change it.
    order: group ordinal and tree index, the logical order within a wave.
    min_step: the oldest step of a policy that may sample it.
    max_step: the newest such step; None for no limit.
    traceparent: trace of the tree.
    scorers: number of scorers that score each leaf.
    weights: weights of scorers in its reward.
    score_deadline_s: time that its scores may take.
    spare: whether its group may be complete without it while it grows.
    name: name of its tree policy in the recipe.
    turns: the actions that a path may have; None without an environment.
    head: whether every sampled token has the learned head's score, whatever the tree policy asks.
    traits: what its tree policy declares.
    """

    tree_id: bytes
    run_id: str
    seed: int
    messages: tuple[Mapping[str, str], ...]
    tree_policy: TreePolicy
    max_path_tokens: int
    sampling: Sampling
    order: tuple[int, int]
    min_step: int = 0
    max_step: int | None = None
    traceparent: str = ""
    scorers: int = 1
    weights: Weights = field(default_factory=lambda: EQUAL)
    score_deadline_s: float = 120.0
    spare: bool = False
    name: str = ""
    turns: Turns | None = None
    head: bool = False
    traits: PolicyTraits = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", traits.of_policy(self.tree_policy))

    @property
    def tree_policy_label(self) -> str:
        """The tree policy, as messages to people name it."""
        return f"generate.policy {self.name}"

    def allows(self, step: int) -> bool:
        """Tell whether a policy of this step may sample the tree."""
        return self.min_step <= step and (self.max_step is None or step <= self.max_step)


def from_wire(spec: tree_pb2.TreeSpec) -> GrowSpec:
    """Read a TreeSpec.

    Raises InvalidInput that names the unusable part, with the reason NO_PLUGIN if this node lacks
    the tree policy.
    """
    try:
        generate = GenerateSpec.from_json(spec.generate_json)
        messages = tuple(json.loads(spec.messages_json))
        _find(generate.name)
        tree_policy = registry.build("generate", generate.name, generate.settings)
        turns = _turns(generate.environment)
        weights = weights_of(spec)
        sampling = generate.sampling(spec.seed)
        if turns is not None:
            sampling = replace(sampling, stop=(*sampling.stop, turns.end))
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
        tree_policy=tree_policy,
        max_path_tokens=sampling.max_new_tokens,
        sampling=sampling,
        order=(spec.group_ordinal, spec.index),
        min_step=spec.min_step,
        max_step=spec.max_step if spec.HasField("max_step") else None,
        traceparent=spec.traceparent,
        scorers=len(spec.scorers),
        weights=weights,
        score_deadline_s=spec.score_deadline_ms / 1000,
        spare=spec.group_take > 0 or spec.HasField("last_step"),
        name=generate.name,
        turns=turns,
        head=generate.head,
    )


def _turns(spec: EnvironmentSpec | None) -> Turns | None:
    """Return the turns of an environment. Raises InvalidInput with NO_PLUGIN if it is not here."""
    if spec is None:
        return None
    try:
        environment = registry.environment(spec.name, spec.settings, spec.hosting)
    except (ImportError, InvalidInput) as error:
        raise InvalidInput(str(error), reason=NO_PLUGIN) from None
    return Turns(spec.turns, environment.end, spec.renderer, spec.longest_path)


def _find(name: str) -> None:
    """Raise InvalidInput with NO_PLUGIN unless this node has the tree policy."""
    try:
        registry.find("generate", name)
    except (ImportError, InvalidInput) as error:
        raise InvalidInput(str(error), reason=NO_PLUGIN) from None
