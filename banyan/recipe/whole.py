"""Recipe of one run: all parts together, and the rules between them."""

from typing import Annotated

from pydantic import Field, model_validator

from banyan.recipe.control import Control
from banyan.recipe.environment import Environment
from banyan.recipe.filter import Filters, weights
from banyan.recipe.generate import Generate
from banyan.recipe.logging import Logging
from banyan.recipe.measure import Budget, Eval
from banyan.recipe.optimise import Optimise
from banyan.recipe.part import Name, Part
from banyan.recipe.replay import Replay
from banyan.recipe.resources import Resources
from banyan.recipe.task import Task


class Recipe(Part):
    """One run."""

    LATER = frozenset({"logging", "replay", "allow_unconfined_scorers", "environment"})

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    """Short name; part of the run's id and of its subjects on the log, so without dots."""
    description: str = ""
    """Purpose of the recipe."""
    source: str = ""
    """The paper or system it follows."""
    model: Name
    """SmolLM2-135M-Instruct, a local Hugging Face folder, or a hub id. ORG/NAME@REVISION names a
    commit, tag or branch of the hub; only a commit is the same model tomorrow."""
    task: Task
    generate: Generate = Generate()
    environment: Environment | None = None
    """Answers the actions of paths; none by default."""
    filter: Filters = []
    """Scorers; empty for the task's own. A leaf's reward is the weighted mean of their values."""
    control: Control = Control()
    replay: Replay | None = None
    """Groups that batches train on again; none by default."""
    optimise: Optimise = Optimise()
    budget: Budget = Budget()
    eval: Eval = Eval()
    resources: Resources = Resources()
    logging: Logging = Logging()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the run: order of rows and all draws."""
    deterministic: bool = False
    """Equal ids and equal weights for equal seeds, on one machine, build and thread count."""
    allow_truncated_sampling: bool = False
    """True if top_p, top_k and logit_bias may be used in training; importance weights then use the
    distribution that was drawn from."""
    allow_unconfined_scorers: bool = False
    """True if scorers may run on a machine that cannot confine them (no Landlock, no seccomp
    filters, or as root without another user): completions then run with the verifier's rights
    wherever a scorer runs them. Otherwise nothing is scored there."""

    @model_validator(mode="after")
    def _possible(self) -> "Recipe":
        truncated = self.generate.top_p < 1.0 or self.generate.top_k > 0 or bool(self.generate.bias)
        if truncated and not self.allow_truncated_sampling:
            raise ValueError(
                "generate.top_p, top_k and logit_bias change the distribution that is drawn from; "
                "set allow_truncated_sampling: true to train on it"
            )
        if self.generate.bias and self.resources.engine == "vllm":
            raise ValueError(
                "generate.logit_bias needs resources.engine torch: vLLM then says no log-prob of "
                "the model's own"
            )
        if self.generate.temperature == 0.0:
            raise ValueError(
                "generate.temperature 0 samples one answer only, so that no group has a spread; "
                "use more than 0"
            )
        if not all(self.scorers):
            raise ValueError(
                "task file needs `task.reward` (module:function), or scorers in `filter`"
            )
        for scorer in self.eval.filter:
            same = [other for other in self.filter if other.name == scorer.name]
            if any(scorer.model_copy(update={"weight": o.weight}) != o for o in same):
                raise ValueError(
                    f"eval.filter and filter name {scorer.name!r} with different settings; lineage "
                    "knows it by name"
                )
        if self.eval.votes is not None and self.task.holdout == 0:
            raise ValueError(
                "eval.votes counts answers to held-out rows, and task.holdout 0 holds none out: "
                "set task.holdout above 0, or leave eval.votes out"
            )
        if self.resources.weights == "nccl" and self.resources.engine_settings.get("lora_rank"):
            raise ValueError(
                "resources.engine_settings.lora_rank has vLLM take adapters, which it reads from "
                "files: set resources.weights to file or nats, or leave lora_rank out"
            )
        if self.replay is not None and not self.optimise.corrects:
            raise ValueError(
                "replay trains on what older policies sampled, and optimise.loss "
                f"{self.optimise.loss} does not correct for that: set optimise.loss: decoupled, or "
                "optimise.loss_settings.importance"
            )
        return self

    @model_validator(mode="after")
    def _repeatable(self) -> "Recipe":
        if not self.deterministic:
            return self
        if self.control.max_staleness or self.resources.rollout_nodes != 1:
            raise ValueError(
                "deterministic: true needs control.max_staleness: 0 and resources.rollout_nodes: 1"
            )
        if self.resources.learner_device == "cuda":
            raise ValueError(
                "deterministic: true trains on the CPU: set resources.learner_device to auto or cpu"
            )
        if self.control.redundancy and self.control.redundancy_debias == "none":
            raise ValueError(
                "control.redundancy takes the trees that close first, which is no rule for "
                "deterministic: true"
            )
        return self

    @property
    def scorers(self) -> list[str]:
        """Names of the scorers that each leaf needs."""
        if self.filter:
            return [f.name for f in self.filter]
        own = {
            "arithmetic": "number",
            "chains": "steps",
            "chains-mod": "exact",
            "products": "number",
            "reasoning-gym": "reasoning-gym",
            "file": self.task.reward,
        }
        return [own[self.task.name]]

    @property
    def scorer_weights(self) -> list[float]:
        """Weights of these in a leaf's reward, in their order; none if all are equal."""
        return weights(self.filter)

    @property
    def eval_weights(self) -> list[float]:
        """Weights of the scorers of an evaluation likewise."""
        return weights(self.eval.filter or self.filter)

    @property
    def eval_scorers(self) -> list[str]:
        """Names of the scorers that each leaf of an evaluation needs."""
        return [f.name for f in self.eval.filter] or self.scorers
