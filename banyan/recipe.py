"""The recipe: what a run does, as one YAML file. Every field has its meaning, unit and the reason for its default.

Unknown keys, wrong types and impossible combinations are refused at once, with the line and the reason.
"""

import math
import struct
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Name = Annotated[str, Field(min_length=1, max_length=200)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
Steps = Annotated[int, Field(ge=0, le=10_000_000)]
_DEEPEST = 32  # levels of settings within settings


def _finite(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON, as which a recipe is stored, has no word for nan and inf."""
    _check_finite(settings, ())
    return settings


def _check_finite(value: Any, at: tuple[str | int, ...]) -> None:
    """Raises an error that knows where in the settings a number is not finite."""
    if len(at) > _DEEPEST:
        raise PydanticCustomError("too_deep", "has more than {levels} levels of settings", {"levels": _DEEPEST})
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("not_finite", "{number} is not a finite number", {"number": str(value), "below": at})
    if isinstance(value, dict):
        for key, below in value.items():
            _check_finite(key, (*at, str(key)))
            _check_finite(below, (*at, str(key)))
    elif isinstance(value, list | tuple | set | frozenset):
        for index, below in enumerate(value):
            _check_finite(below, (*at, index))


Settings = Annotated[dict[str, Any], AfterValidator(_finite)]


class Part(BaseModel):
    """Base of all parts of a recipe: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that recipes once did not have: with their default they are no part of a deterministic run's identity."""


class Task(Part):
    """Where the prompts come from."""

    name: Literal["arithmetic", "reasoning-gym", "file"]
    """arithmetic: built in, for the quick start. reasoning-gym: one of its generators. file: the user's JSONL or Parquet."""
    dataset: str = ""
    """reasoning-gym: name of the generator."""
    size: Annotated[int, Field(ge=2, le=10_000_000)] = 1000
    """reasoning-gym: number of rows to generate."""
    config: Settings = {}
    """reasoning-gym: settings of the generator."""
    path: str = ""
    """file: rows, one JSON object a line or a Parquet table."""
    prompt: str = "prompt"
    """file: the field that holds the prompt: a text, or a list of {role, content}."""
    reward: str = ""
    """file: module:function, `def reward(completion: str, **row) -> float`."""
    system: Annotated[str, Field(max_length=65_536)] = ""
    """System message put before every prompt; empty for none."""
    holdout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the rows that is never trained on, chosen by row digest."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of generated rows; apart from the run's seed, so that seeds of a run share their rows."""

    @model_validator(mode="after")
    def _complete(self) -> "Task":
        if self.name == "reasoning-gym" and not self.dataset:
            raise ValueError("task reasoning-gym needs `dataset`, the name of a generator such as countdown")
        if self.name == "file" and not (self.path and self.reward):
            raise ValueError("task file needs `path` and `reward` (module:function)")
        return self


class Generate(Part):
    """How trees grow."""

    LATER = frozenset({"logit_bias"})

    policy: Name = "iid"
    """Tree policy: a registered name or module:attribute."""
    settings: Settings = {}
    """Settings of the tree policy."""
    trees: Annotated[int, Field(ge=1, le=1024)] = 1
    """Trees per group (prompt row)."""
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 128
    """Policy tokens that a path may hold at most."""
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """Divides the logits, in sampling and in the learner alike."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus mass; below 1 the recipe must allow truncated sampling."""
    top_k: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Likeliest tokens kept; 0 for all."""
    stop: list[str] = []
    """Strings that end a path, beside the model's end token."""
    logit_bias: Annotated[dict[Token, Bias], Field(max_length=1024)] = {}
    """By token id, what is added to its logit before the temperature; the recipe must allow truncated sampling."""

    @model_validator(mode="before")
    @classmethod
    def _ids(cls, values: Any) -> Any:
        """Keys are texts in JSON."""
        bias = values.get("logit_bias") if isinstance(values, dict) else None
        if isinstance(bias, dict):
            read = {int(token) if isinstance(token, str) and token.isdecimal() else token: b for token, b in bias.items()}
            values = {**values, "logit_bias": read}
        return values

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """What is added to logits, in the one form that segments keep: float32, ascending by token, without zeros."""
        pairs = ((token, struct.unpack("<f", struct.pack("<f", added))[0]) for token, added in self.logit_bias.items())
        return tuple(sorted((token, added) for token, added in pairs if added))


class Filter(Part):
    """A scorer of leaves."""

    LATER = frozenset({"group"})

    name: Name
    """A registered scorer or module:function."""
    settings: Settings = {}
    """Settings of the scorer."""
    group: bool = False
    """module:function only: it scores all completions of a group together, `def reward(completions: list[str], **row)`."""


class Control(Part):
    """Which prompts, and how far sampling may run ahead."""

    LATER = frozenset(
        {
            "curriculum",
            "curriculum_settings",
            "redundancy",
            "redundancy_debias",
            "stale_groups",
            "rooms",
            "rooms_settings",
        }
    )

    groups_per_batch: Annotated[int, Field(ge=1, le=100_000)] = 8
    """Groups (prompt rows) that one optimizer step consumes."""
    max_staleness: Annotated[int, Field(ge=0, le=1000)] = 0
    """Steps that a tree's policy may be behind. 0: sampling and training take turns, each with all cores."""
    over_provision: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Groups that are grown beyond those that a step needs (APRIL); the first to close are taken, the rest go on first."""
    curriculum: Name = "uniform"
    """Which row each training group gets, and how it is sampled: a registered name or module:attribute."""
    curriculum_settings: Settings = {}
    """Settings of the curriculum."""
    redundancy: Annotated[int, Field(ge=0, le=1024)] = 0
    """Trees that a group is opened with beyond those that it takes; once it has enough, the others are stopped."""
    redundancy_debias: Literal["none", "cancel_uniform"] = "none"
    """none: the first trees to close are taken, which favours short answers. cancel_uniform: which ones are stopped is drawn
    without regard to how long they take, so a spare only stands in for a tree that was given up."""
    stale_groups: Literal["keep", "drop"] = "keep"
    """drop: groups that were opened more than max_staleness steps ago are given up. keep: only their stale leaves are."""
    rooms: Annotated[str, Field(max_length=200)] = ""
    """How room is shared out among trees while they grow (xrpo), for a tree policy that grows by rooms; empty for none."""
    rooms_settings: Settings = {}
    """Settings of `rooms`."""
    max_claims: Annotated[int, Field(ge=1, le=1000)] = 5
    """Claims of a tree without a new segment after which it is dropped."""
    score_deadline_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    """How long a leaf may wait for a score before it is UNSCORABLE(DEADLINE)."""

    @model_validator(mode="after")
    def _carried(self) -> "Control":
        if self.over_provision and not self.max_staleness:
            raise ValueError("over_provision carries groups over to later steps: set max_staleness to at least 1")
        if self.redundancy_debias != "none" and not self.redundancy:
            raise ValueError("redundancy_debias says which trees redundancy stops: set redundancy to at least 1")
        return self


class Head(Part):
    """A head on the policy's last-layer states that learns which paths will be right, for tree policies that ask it."""

    width: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Numbers of its hidden layer."""
    learning_rate: Annotated[float, Field(gt=0, le=1.0)] = 1e-3
    """Adam's step size; one gradient step per policy step."""
    bins: Annotated[int, Field(ge=2, le=1000)] = 10
    """Bins of equally many observations that it is calibrated by."""
    window: Annotated[int, Field(ge=2, le=1_000_000)] = 2000
    """Observations that are kept for that, the newest ones."""
    cold_steps: Steps = 20
    """Gradient steps before it is heard (card 18: about 20)."""


class Lora(Part):
    """Trains small matrices beside the model's own, which stay as they are (Hu et al. 2021, arXiv 2106.09685)."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    """Rows of A and columns of B: what is added to a matrix W is alpha / rank · B A."""
    alpha: Annotated[float, Field(gt=0, le=1_000_000)] = 32.0
    """Factor of what is added, over the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Only 0: a loss compares the policy that sampled with the one in training, which must be the same function."""
    targets: Annotated[list[Name], Field(min_length=1, max_length=1000)] | Literal["all-linear"] = "all-linear"
    """Ends of the names of the matrices, such as [q_proj, v_proj]. all-linear: every one but the output layer."""

    @model_validator(mode="after")
    def _same(self) -> "Lora":
        if self.dropout:
            raise ValueError(f"dropout {self.dropout} makes another function of each pass, and ratios compare two; set 0")
        return self


class Replay(Part):
    """What a batch trains on again, beside its own groups. Needs a loss that corrects for the policy that sampled."""

    policy: Name = "dots"
    """Who draws groups: a registered name or module:attribute. dots: those of which some leaves fail. recent: any."""
    settings: Settings = {}
    """Settings of the policy."""
    fraction: Annotated[float, Field(ge=0.0, le=0.99)] = 0.0
    """Share of a batch's groups that are replayed, as far as they are stored; groups_per_batch counts the fresh ones."""
    capacity: Annotated[int, Field(ge=1, le=100_000)] = 512
    """Groups that are drawn from: the newest ones, one a row (card 41)."""
    rescue: bool = False
    """A group of which every leaf fails gets, in the place of one of them, the newest stored success of its row."""
    right: float = 0.5
    """rescue: rewards of at least this count as successes."""
    max_age: Steps = 0
    """Batches after which a tree is not replayed any more; 0 for never."""

    @model_validator(mode="after")
    def _something(self) -> "Replay":
        if not self.fraction and not self.rescue:
            raise ValueError("replay replays nothing: set fraction above 0, or rescue: true, or leave replay out")
        return self


class Optimise(Part):
    """How closed groups become an update."""

    LATER = frozenset({"decay_floor", "epochs", "head", "lora", "max_not_finite", "minibatches", "recompute", "schedule"})

    advantage: Name = "grpo"
    """Estimator: a registered name or module:attribute."""
    advantage_settings: Settings = {}
    """Settings of the estimator."""
    loss: Literal["ppo-clip", "reinforce", "decoupled", "gspo", "cispo", "echo-clip", "dpo"] = "ppo-clip"
    """Loss on the gathered path values."""
    loss_settings: Settings = {}
    """Settings of the loss."""
    learning_rate: Annotated[float, Field(gt=0, le=1.0)] = 1e-6
    """AdamW's step size."""
    weight_decay: Annotated[float, Field(ge=0, le=1.0)] = 0.0
    """AdamW's decoupled decay."""
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passes over each batch (PPO epochs). Beyond the first step ratios leave 1, and clipping begins to act."""
    minibatches: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Optimizer steps of a pass: the batch's groups are divided into so many parts, or as many as groups teach."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's decay of first and second moments."""
    warmup_steps: Steps = 0
    """Steps over which the learning rate rises linearly from 0."""
    decay_steps: Steps = 0
    """Steps after which the learning rate reaches its floor, falling from the first; 0 for a constant rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How it falls. linear and cosine: over decay_steps. constant: it does not, and decay_steps must be 0."""
    decay_floor: Annotated[float, Field(ge=0, le=1.0)] = 0.0
    """Share of learning_rate that it falls to."""
    max_not_finite: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Steps in a row that are skipped for a loss or a gradient that is not finite, after which the run fails."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest gradient norm."""
    tokens_per_row: Annotated[int, Field(ge=16, le=100_000_000)] = 4096
    """Token budget of one packed row: bounds the learner's memory."""
    recompute: bool = False
    """Keeps only what goes into a layer and computes the rest again going backward: less memory, a third more work."""
    head: Head | None = None
    """Trains a head and publishes it with the policy; none unless it is asked for (`head: {}` for its defaults)."""
    lora: Lora | None = None
    """Trains an adapter instead of the model's own weights; none unless it is asked for (`lora: {}` for its defaults)."""
    checkpoint_every: Steps = 0
    """Steps between checkpoints; 0 lets the learner choose so that they cost at most 5 % of the time."""

    @property
    def corrects(self) -> bool:
        """Whether the loss has importance weights of the policy that sampled."""
        return self.loss_settings.get("importance", {} if self.loss == "decoupled" else None) is not None

    @model_validator(mode="before")
    @classmethod
    def _tuple(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("betas"), list):
            values = {**values, "betas": tuple(values["betas"])}
        return values

    @model_validator(mode="after")
    def _scheduled(self) -> "Optimise":
        if self.schedule == "constant" and (self.decay_steps or self.decay_floor):
            raise ValueError(
                "schedule constant has no decay: leave decay_steps and decay_floor out, or name another schedule"
            )
        if not self.decay_steps and (self.schedule == "cosine" or self.decay_floor):
            raise ValueError(
                f"schedule {self.schedule} with decay_floor {self.decay_floor:g} falls over decay_steps: set them"
            )
        return self


class Budget(Part):
    """When the run ends."""

    steps: Annotated[int, Field(ge=1, le=10_000_000)] = 100
    """Optimizer steps."""
    minutes: Annotated[float, Field(gt=0, le=10_000_000)] | None = None
    """Wall-clock limit; the run then ends as FAILED with that cause. None for no limit."""


class Eval(Part):
    """Measures the policy on the held-out rows, before and after the run."""

    LATER = frozenset({"filter"})

    samples: Annotated[int, Field(ge=0, le=1024)] = 4
    """Sampled answers per row at the recipe's temperature, beside the greedy one."""
    every: Steps = 0
    """Steps between evaluations during the run; 0 for none."""
    max_rows: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Most held-out rows that are measured, in order of row digest."""
    filter: list[Filter] = []
    """Scorers of evaluations; empty for those of training. A run that trains on a vote must name what is true."""


class Resources(Part):
    """What the run takes of the machine."""

    LATER = frozenset({"learner_ranks", "refresh", "drain_s", "weights", "weights_base_every", "weights_fallback"})

    rollout_nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Rollout processes that the launcher starts; more may join."""
    learner_ranks: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes that train one model together, its weights cut over them (FSDP2). Above 1 the learner starts the others on
    its machine, unless torchrun has started all of them; they share its threads."""
    threads: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Torch threads per process. auto: all cores with max_staleness 0, else the cores divided."""
    kv_tokens: Annotated[int, Field(ge=256, le=2**40)] = 65_536
    """Tokens of KV cache that a rollout node may hold."""
    max_branches: Annotated[int, Field(ge=2, le=65_536)] = 64
    """Branches that a rollout node decodes at once."""
    engine: Literal["torch", "vllm", "scripted"] = "torch"
    """vllm: for large models (`make vllm`). scripted: a tiny known token distribution without torch, for tests."""
    engine_settings: Settings = {}
    """Settings of the engine. vllm: block_size, eager, lora_rank, arguments."""
    refresh: Literal["cut", "drain"] = "cut"
    """A new policy. cut: running branches end and go on under it. drain: they may end first, and nothing new is begun."""
    drain_s: Annotated[float, Field(gt=0, le=100.0)] = 10.0
    """refresh drain: how long running branches may go on before they are cut."""
    weights: Literal["file", "nats", "nccl"] = "file"
    """How new weights reach the nodes. file: a folder that nodes of the host map. nats: an object store on NATS that holds
    whole versions, and between them what changed. Joined nodes fetch over gRPC in any case. nccl: is refused."""
    weights_base_every: Annotated[int, Field(ge=1, le=1000)] = 20
    """weights nats: versions from one whole one to the next; sooner where changes come to half of a whole one."""
    weights_fallback: Literal["none", "fetch"] = "none"
    """weights nats: what a node does that cannot have a version from there. none: it asks for a whole one, and its trees
    wait. fetch: it asks for one, says so in its log, and fetches this one from the learner over gRPC."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of sampling and of the learner's products; master weights: float32. auto: bfloat16 if the CPU has it."""

    @model_validator(mode="after")
    def _carried(self) -> "Resources":
        if self.weights == "nccl":
            raise ValueError(
                "weights nccl is not there: it hands weights from the learner's accelerator to vLLM's, and Banyan's learner"
                " has none to hand over from; use file on one host, nats across hosts"
            )
        if self.weights_fallback != "none" and self.weights != "nats":
            raise ValueError("weights_fallback says what to do without weights nats: set weights to nats, or leave it out")
        return self


class Logging(Part):
    """Where the metrics of each step go beside the store."""

    loggers: list[Name] = []
    """jsonl, tensorboard, wandb, mlflow (`pip install 'banyan[loggers]'` for all but the first), or module:attribute."""
    settings: dict[str, Settings] = {}
    """By logger, its settings."""

    @model_validator(mode="after")
    def _named(self) -> "Logging":
        twice = sorted({name for name in self.loggers if self.loggers.count(name) > 1})
        if twice:
            raise ValueError(f"loggers names {twice[0]} twice")
        unknown = sorted(set(self.settings) - set(self.loggers))
        if unknown:
            raise ValueError(f"settings are for {unknown[0]}, which loggers does not name")
        return self


class Recipe(Part):
    """One run."""

    LATER = frozenset({"logging", "replay"})

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    """Short name; part of the run's id and of its subjects on the log, so without dots."""
    description: str = ""
    """What the recipe shows."""
    source: str = ""
    """The paper or system it follows."""
    model: Name
    """SmolLM2-135M-Instruct, a local Hugging Face folder, or a hub id."""
    task: Task
    generate: Generate = Generate()
    filter: list[Filter] = []
    """Scorers; empty for the task's own. A leaf's reward is the mean of their values."""
    control: Control = Control()
    replay: Replay | None = None
    """What batches train on again; nothing unless it is asked for."""
    optimise: Optimise = Optimise()
    budget: Budget = Budget()
    eval: Eval = Eval()
    resources: Resources = Resources()
    logging: Logging = Logging()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the run: order of rows and all draws."""
    deterministic: bool = False
    """Same ids and same weights for the same seed, on one machine, build and thread count (PROTOCOL 5)."""
    allow_truncated_sampling: bool = False
    """Whether top_p, top_k and logit_bias may be used in training; importance weights then use what was drawn from."""

    @model_validator(mode="after")
    def _possible(self) -> "Recipe":
        truncated = self.generate.top_p < 1.0 or self.generate.top_k > 0 or bool(self.generate.bias)
        if truncated and not self.allow_truncated_sampling:
            raise ValueError(
                "generate.top_p, top_k and logit_bias change the distribution that is drawn from; set "
                "allow_truncated_sampling: true to train on it"
            )
        if self.generate.bias and self.resources.engine == "vllm":
            raise ValueError(
                "generate.logit_bias needs resources.engine torch: vLLM then says no log-prob of the model's own"
            )
        if self.generate.temperature == 0.0:
            raise ValueError(
                "generate.temperature 0 samples one answer only, so that no group has a spread; use more than 0"
            )
        for scorer in self.eval.filter:
            if any(scorer.name == other.name and scorer != other for other in self.filter):
                raise ValueError(
                    f"eval.filter and filter name {scorer.name!r} with different settings; lineage knows it by name"
                )
        if self.resources.learner_ranks > 1 and self.optimise.lora is not None:
            raise ValueError("optimise.lora trains on one rank: set resources.learner_ranks to 1, or leave lora out")
        if self.replay is not None and not self.optimise.corrects:
            raise ValueError(
                f"replay trains on what older policies sampled, and optimise.loss {self.optimise.loss} does not correct "
                "for that: set optimise.loss: decoupled, or optimise.loss_settings.importance"
            )
        if self.deterministic and (self.control.max_staleness or self.resources.rollout_nodes != 1):
            raise ValueError("deterministic: true needs control.max_staleness: 0 and resources.rollout_nodes: 1")
        if self.deterministic and self.control.redundancy and self.control.redundancy_debias == "none":
            raise ValueError("control.redundancy takes the trees that close first, which is no rule for deterministic: true")
        return self

    @property
    def scorers(self) -> list[str]:
        """Names of the scorers that each leaf needs."""
        if self.filter:
            return [f.name for f in self.filter]
        return {"arithmetic": ["number"], "reasoning-gym": ["reasoning-gym"], "file": [self.task.reward]}[self.task.name]

    @property
    def eval_scorers(self) -> list[str]:
        """Names of the scorers that each leaf of an evaluation needs."""
        return [f.name for f in self.eval.filter] or self.scorers
