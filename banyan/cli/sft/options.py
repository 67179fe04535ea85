"""Options of `banyan sft`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="Name or file of a recipe, whose model is taken."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="key=value of the recipe, such as model=FOLDER")
]
Rows = Annotated[
    Path | None,
    typer.Option("--rows", help="JSON Lines, Parquet or CSV: prompt and completion, or messages."),
]
FromRun = Annotated[
    str, typer.Option("--from", help="A stored run, whose successful paths are learned.")
]
AtLeast = Annotated[float, typer.Option(help="With --from: reward that a path must have.")]
To = Annotated[Path, typer.Option("--to", help="Folder to write the model to.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace an earlier warm start in that folder.")
]
Epochs = Annotated[int, typer.Option(min=1, max=1000, help="Passes over the rows.")]
Steps = Annotated[
    int | None, typer.Option(min=1, max=100_000, help="Optimizer steps, instead of --epochs.")
]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Peak of AdamW's step size; warmed up over a tenth of the steps, then falling to 0. "
        "By default 2e-5, and 2e-4 with --lora."
    ),
]
BatchTokens = Annotated[
    int, typer.Option(min=16, max=100_000_000, help="Tokens of a step, shared ones once.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, max=2**31 - 1, help="Order of rows; the recipe's by default.")
]
HoldOut = Annotated[
    float,
    typer.Option(
        "--holdout", min=0.0, max=0.9, help="Share of the rows, by prompt, that only measure."
    ),
]
LoraRank = Annotated[
    int | None,
    typer.Option(
        "--lora", min=1, max=1024, help="Train an adapter of this rank, and write it merged."
    ),
]

FULL_RATE, LORA_RATE = 2e-5, 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the optimizer steps.

    steps: None for whole epochs
    lora: rank of an adapter; None to train all weights
    """

    epochs: int
    steps: int | None
    learning_rate: float
    batch_tokens: int
    seed: int
    holdout: float
    lora: int | None

    def facts(self) -> dict[str, Any]:
        """Return the settings by name, for the record."""
        return asdict(self)
