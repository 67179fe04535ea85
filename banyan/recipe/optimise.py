"""The update that is made of closed groups, and parts trained beside or instead of the model."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from banyan.recipe.part import Beta, Name, Part, Settings, Steps


class Head(Part):
    """A head on the policy's last-layer states that learns which paths will be right, for tree
    policies that use it."""

    width: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Size of its hidden layer."""
    learning_rate: Annotated[float, Field(gt=0, le=1.0)] = 1e-3
    """Adam's step size; one gradient step per policy step."""
    bins: Annotated[int, Field(ge=2, le=1000)] = 10
    """Bins of equally many observations for its calibration."""
    window: Annotated[int, Field(ge=2, le=1_000_000)] = 2000
    """Newest observations that are kept for the calibration."""
    cold_steps: Steps = 20
    """Gradient steps before its scores are used (ARRoL: about 20)."""


class Lora(Part):
    """Trains small matrices beside the model's own, which stay as they are (Hu et al. 2021, arXiv
    2106.09685)."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    """Rows of A and columns of B: alpha / rank · B A is added to a matrix W."""
    alpha: Annotated[float, Field(gt=0, le=1_000_000)] = 32.0
    """Factor of the added product, over the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Only 0: a loss compares the policy that sampled with the one in training, which must be the
    same function."""
    targets: Annotated[list[Name], Field(min_length=1, max_length=1000)] | Literal["all-linear"] = (
        "all-linear"
    )
    """Ends of the names of the matrices, such as [q_proj, v_proj]. all-linear: all but the output
    layer."""

    @model_validator(mode="after")
    def _same(self) -> "Lora":
        if self.dropout:
            raise ValueError(
                f"dropout {self.dropout} makes each pass random, and ratios compare two; set 0"
            )
        return self


class Optimise(Part):
    """The update that is made of closed groups."""

    LATER = frozenset(
        {
            "decay_floor",
            "entropy_quantile",
            "epochs",
            "epsilon",
            "head",
            "lora",
            "max_not_finite",
            "minibatches",
            "most_groups",
            "recompute",
            "schedule",
        }
    )

    advantage: Name = "grpo"
    """Estimator: a registered name or module:attribute."""
    advantage_settings: Settings = {}
    """Settings of the estimator."""
    entropy_quantile: Annotated[float, Field(ge=0, lt=1.0)] = 0.0
    """Share of a group's steps whose advantage becomes 0: those of the lowest entropy (DART: 0.2);
    0 for none. Needs an engine that records entropies."""
    most_groups: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Groups of a batch that are trained on at most: the first of those that teach (TreePO: a third
    of the sampled ones); 0 for all of them."""
    loss: Literal[
        "ppo-clip", "reinforce", "decoupled", "gspo", "cispo", "echo-clip", "otr", "dpo"
    ] = "ppo-clip"
    """Loss on the gathered path values."""
    loss_settings: Settings = {}
    """Settings of the loss."""
    learning_rate: Annotated[float, Field(gt=0, le=1.0)] = 1e-6
    """AdamW's step size."""
    weight_decay: Annotated[float, Field(ge=0, le=1.0)] = 0.0
    """AdamW's decoupled decay."""
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passes over each batch (PPO epochs). Beyond the first step ratios leave 1, and clipping
    begins to act."""
    minibatches: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Optimizer steps of a pass: the batch's groups are divided into so many parts, at most one for
    each group that teaches."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's decay of first and second moments."""
    epsilon: Annotated[float, Field(gt=0, le=1.0)] = 1e-8
    """AdamW's term beside the root of the second moment. A weight whose gradient stays far below it
    hardly moves, whereas AdamW otherwise moves all weights by about as much."""
    warmup_steps: Steps = 0
    """Steps over which the learning rate rises linearly from 0."""
    decay_steps: Steps = 0
    """Steps after which the learning rate reaches its floor, falling from the first; 0 for a
    constant rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Shape of the decay. linear and cosine: over decay_steps. constant: no decay, and decay_steps
    must be 0."""
    decay_floor: Annotated[float, Field(ge=0, le=1.0)] = 0.0
    """Share of learning_rate at the end of the decay."""
    max_not_finite: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Steps in a row that are skipped for a loss or a gradient that is not finite, after which the
    run fails."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest gradient norm."""
    tokens_per_row: Annotated[int, Field(ge=16, le=100_000_000)] = 4096
    """Token budget of a packed sequence: bounds the learner's memory."""
    recompute: bool = False
    """Keeps only the inputs of layers and computes the rest again in the backward pass: less
    memory, a third more work."""
    head: Head | None = None
    """Trains a head and publishes it with the policy; by default none (`head: {}` for one with
    defaults)."""
    lora: Lora | None = None
    """Trains an adapter instead of the model's own weights; by default none (`lora: {}` for one
    with defaults)."""
    checkpoint_every: Steps = 0
    """Steps between checkpoints; 0 lets the learner choose so that they cost at most 5 % of the
    time."""

    @property
    def corrects(self) -> bool:
        """True if the loss has importance weights of the policy that sampled."""
        return (
            self.loss_settings.get("importance", {} if self.loss == "decoupled" else None)
            is not None
        )

    @model_validator(mode="before")
    @classmethod
    def _tuple(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("betas"), list):
            values = {**values, "betas": tuple(values["betas"])}
        return values

    @model_validator(mode="after")
    def _masked(self) -> "Optimise":
        if self.entropy_quantile and self.loss == "dpo":
            raise ValueError(
                f"entropy_quantile {self.entropy_quantile:g} masks advantages, and loss dpo "
                "compares pairs: set it to 0, or take another loss"
            )
        return self

    @model_validator(mode="after")
    def _scheduled(self) -> "Optimise":
        if self.schedule == "constant" and (self.decay_steps or self.decay_floor):
            raise ValueError(
                "schedule constant has no decay: leave decay_steps and decay_floor out, or name "
                "another schedule"
            )
        if not self.decay_steps and (self.schedule == "cosine" or self.decay_floor):
            raise ValueError(
                f"schedule {self.schedule} with decay_floor {self.decay_floor:g} falls over "
                "decay_steps: set them"
            )
        return self
