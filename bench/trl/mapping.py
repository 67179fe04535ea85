"""Counterparts of a recipe's settings for TRL's GRPOTrainer.

Every field that decides how much work a step is, or what it learns, is mapped to TRL's own names,
or a sentence gives the reason why it needs none. A recipe with a feature that TRL lacks, or does
otherwise, is refused by name: it could not be compared.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from banyan.errors import InvalidInput
from banyan.recipe import Recipe

EPSILON = 1e-4  # TRL adds it to each group's standard deviation, and has no setting for it
CHANGES = (
    f"optimise.advantage_settings={{epsilon: {EPSILON}}}",
)  # of our recipe, so that both divide by the same
_ANY: Any = object()


@dataclass(frozen=True)
class Meaning:
    """Counterpart of a field: remark, TRL's names and values for a value, and the only
    comparable value."""

    says: str = ""
    trl: Callable[[Any], Mapping[str, Any]] | None = None
    only: Any = _ANY


@dataclass(frozen=True)
class Line:
    """Field of ours with its value, its counterpart in TRL, and a remark."""

    field: str
    value: Any
    trl: Mapping[str, Any]
    says: str


@dataclass(frozen=True)
class Variant:
    """TRL's own choices: arithmetic and micro-batch.

    The arithmetic is float32 weights under bf16 autocast, or bfloat16 weights.
    """

    dtype: str
    micro: int

    @property
    def name(self) -> str:
        """Name for people and cells."""
        return f"{'float32+autocast' if self.dtype == 'float32' else 'bfloat16'}/{self.micro}"

    def arguments(self, batch: int) -> dict[str, Any]:
        """Return TRL's names for it."""
        return {
            "per_device_train_batch_size": self.micro,
            "gradient_accumulation_steps": batch // self.micro,
            "generation_batch_size": batch,
            "bf16": self.dtype == "float32",
            "model_init_kwargs": {"dtype": self.dtype},
        }


MICROS = (64, 32, 16, 8)
VARIANTS = tuple(Variant(dtype, micro) for dtype in ("float32", "bfloat16") for micro in MICROS)


def _as(*names: str) -> Callable[[Any], Mapping[str, Any]]:
    """Return TRL's names for the value itself, or for its parts in order."""
    return lambda value: (
        {names[0]: value} if len(names) == 1 else dict(zip(names, value, strict=True))
    )


def _fixed(**arguments: Any) -> Callable[[Any], Mapping[str, Any]]:
    return lambda _: arguments


def _falling(decay_steps: int) -> Mapping[str, Any]:
    return {"lr_scheduler_type": "linear" if decay_steps else "constant"}


_IN_STEP = "none: all groups are opened for the step that takes them"
FIELDS: Mapping[str, Meaning] = {
    "model": Meaning("the same folder"),
    "task": Meaning(
        "the same rows as chat messages, in the order of our run", _fixed(shuffle_dataset=False)
    ),
    "filter": Meaning("the same scorer's code, called as a reward function"),
    "environment": Meaning("the model answers alone, in both", only=None),
    "replay": Meaning("none in TRL", only=None),
    "seed": Meaning("the draws differ: other generators", _as("seed")),
    "deterministic": Meaning("TRL promises no bits", only=False),
    "allow_truncated_sampling": Meaning("nothing is truncated", only=False),
    "allow_unconfined_scorers": Meaning("the scorer is our own, in either", only=False),
    "generate.policy": Meaning("independent samples", only="iid"),
    "generate.settings": Meaning("", lambda settings: {"num_generations": settings["width"]}),
    "generate.trees": Meaning("num_generations is the width of one tree", only=1),
    "generate.max_new_tokens": Meaning("", _as("max_completion_length")),
    "generate.temperature": Meaning("", _as("temperature")),
    "generate.top_p": Meaning("", _as("top_p")),
    "generate.top_k": Meaning("", _as("top_k")),
    "generate.stop": Meaning("the model's end token alone", only=[]),
    "generate.logit_bias": Meaning("none", only={}),
    "control.groups_per_batch": Meaning(
        "per_device_train_batch_size x gradient_accumulation_steps = groups x width"
    ),
    "control.max_staleness": Meaning(
        "on policy; steps_per_generation is one optimizer step", only=0
    ),
    "control.curriculum": Meaning("TRL's rows lie in its order", only="uniform"),
    "control.curriculum_settings": Meaning("none", only={}),
    "control.over_provision": Meaning(_IN_STEP, only=0),
    "control.redundancy": Meaning(_IN_STEP, only=0),
    "control.redundancy_debias": Meaning(_IN_STEP, only="none"),
    "control.stale_groups": Meaning("nothing is stale", only="keep"),
    "control.rooms": Meaning("none", only=""),
    "control.rooms_settings": Meaning("none", only={}),
    "control.max_claims": Meaning("of faults"),
    "control.score_deadline_s": Meaning("of faults"),
    "optimise.advantage": Meaning(
        "reward less mean, over sample deviation", _fixed(scale_rewards="group"), "grpo"
    ),
    "optimise.advantage_settings": Meaning("TRL's epsilon for both", only={"epsilon": EPSILON}),
    "optimise.entropy_quantile": Meaning(
        "no step is masked; nor is a token: top_entropy_quantile 1", only=0.0
    ),
    "optimise.loss": Meaning(
        "token mean over the whole batch, both clips and the dual clip",
        _fixed(loss_type="dapo", epsilon=0.2, epsilon_high=0.2, delta=3.0),
        "ppo-clip",
    ),
    "optimise.loss_settings": Meaning("the defaults, which the line above names", only={}),
    "optimise.learning_rate": Meaning("", _as("learning_rate")),
    "optimise.weight_decay": Meaning("", _as("weight_decay")),
    "optimise.betas": Meaning("", _as("adam_beta1", "adam_beta2")),
    "optimise.epsilon": Meaning("", _as("adam_epsilon")),
    "optimise.warmup_steps": Meaning("", _fixed(warmup_steps=0), 0),
    "optimise.decay_steps": Meaning(
        "over all steps of a run in TRL, as ours if it has as many", _falling
    ),
    "optimise.schedule": Meaning("how the rate falls, as the line above names it", only="linear"),
    "optimise.decay_floor": Meaning("to 0", only=0.0),
    "optimise.max_not_finite": Meaning("of faults"),
    "optimise.recompute": Meaning("gradient_checkpointing is off too", only=False),
    "optimise.clip_norm": Meaning("", _as("max_grad_norm")),
    "optimise.epochs": Meaning("", _as("num_iterations"), 1),
    "optimise.minibatches": Meaning("one optimizer step a batch", only=1),
    "optimise.most_groups": Meaning("all groups of a batch are trained on", only=0),
    "optimise.tokens_per_row": Meaning(
        "how ours cuts the batch; TRL's micro-batch is swept, and ours beside it"
    ),
    "optimise.lora": Meaning("all weights are trained", only=None),
    "optimise.head": Meaning("none", only=None),
    "optimise.checkpoint_every": Meaning(
        "none within the steps, in either", _fixed(save_strategy="no"), 1000
    ),
    "resources.rollout_nodes": Meaning("one process samples", only=1),
    "resources.learner_ranks": Meaning("one process trains", only=1),
    "resources.learner_device": Meaning(
        "TRL takes an accelerator where there is one, as ours does", only="auto"
    ),
    "resources.threads": Meaning("all cores; ours take turns, TRL is one process", only="auto"),
    "resources.dtype": Meaning("ours: bfloat16 products, float32 master weights; TRL's is swept"),
    "resources.kv_tokens": Meaning("the whole batch fits"),
    "resources.max_branches": Meaning("the whole batch at once, as in TRL's generate"),
    "resources.engine": Meaning("TRL samples by transformers' generate", only="torch"),
    "resources.engine_settings": Meaning("none", only={}),
    "resources.weights": Meaning(
        "TRL's sampler is its trained model; ours is handed a file in shared memory", only="file"
    ),
    "resources.weights_base_every": Meaning("of other ways to hand weights over"),
    "resources.weights_fallback": Meaning("of other ways to hand weights over"),
    "resources.refresh": Meaning("nothing runs when new weights come"),
    "resources.drain_s": Meaning("the same"),
}
# Fields that affect neither the work of a step nor its result.
APART = {"name", "description", "source", "budget", "eval", "logging"}

# Parts of our defaults that no field names, in TRL's names.
PARTS: Mapping[str, str] = {
    "PpoClip.clip_low": "epsilon",
    "PpoClip.clip_high": "epsilon_high",
    "PpoClip.dual_clip": "delta",
    "PpoClip.delta": "of foreign data: none",
    "Composed.surrogate": "loss_type",
    "Composed.aggregate": "loss_type",
    "Composed.old": "TRL's ratio is to the log-probs of the pass itself, ours to the sampler's: "
    "bf16 apart",
    "Composed.importance": "none in TRL without vLLM",
    "Composed.reject": "off_policy_mask_threshold: none",
    "Composed.kl": "beta 0",
    "Composed.entropy": "entropy_coef 0",
    "Composed.forced": "no tokens are forced",
    "Composed.shaping": "no tokens are forced",
    "Aggregate.mode": "loss_type dapo is token-mean",
    "Aggregate.length": "of other modes",
    "Aggregate.count_silent": "TRL counts groups without a spread, ours by default not",
    "Aggregate.count": "paths: as TRL",
    "Grpo.scale": "scale_rewards",
    "Grpo.epsilon": "1e-4 in TRL",
}
# TRL's own settings without a field of ours. `gradient_checkpointing` would be on: less memory for
# more time.
OWN: Mapping[str, Any] = {
    "beta": 0.0,
    "gradient_checkpointing": False,
    "min_p": None,
    "repetition_penalty": 1.0,
    "importance_sampling_level": "token",
    "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "num_iterations": 1,
    "optim": "adamw_torch_fused",
    "use_vllm": False,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "logging_steps": 1,
}


def fields(part: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return paths and values of a recipe's fields, those of its parts under their names."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        if name in ("generate", "control", "optimise", "resources"):
            yield from fields(value, f"{name}.")
        elif prefix or name not in APART:
            yield prefix + name, value


def lines(recipe: Recipe) -> list[Line]:
    """Return each field with its counterpart.

    Raises InvalidInput for a value without one, or an unmapped field.
    """
    return [_line(name, value) for name, value in fields(recipe)]


def _line(name: str, value: Any) -> Line:
    if name not in FIELDS:
        raise InvalidInput(
            f"{name} is mapped to nothing of TRL's; say in bench/trl/mapping.py what it is there"
        )
    meaning = FIELDS[name]
    if meaning.only is not _ANY and value != meaning.only:
        raise InvalidInput(
            f"{name} {value!r} has no counterpart in TRL; the comparison needs {meaning.only!r}"
        )
    return Line(name, value, meaning.trl(value) if meaning.trl else {}, meaning.says)


def arguments(recipe: Recipe, variant: Variant, steps: int) -> dict[str, Any]:
    """Return GRPOConfig's arguments."""
    mapped = {name: value for line in lines(recipe) for name, value in line.trl.items()}
    return {**OWN, **mapped, **variant.arguments(batch(recipe)), "max_steps": steps}


def batch(recipe: Recipe) -> int:
    """Return the answers of one step."""
    return int(recipe.control.groups_per_batch * recipe.generate.settings["width"])
