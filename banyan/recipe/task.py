"""Source of the prompts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from banyan.recipe import hub_dataset
from banyan.recipe.part import Part, Settings


class Task(Part):
    """Source of the prompts."""

    name: Literal["arithmetic", "chains", "chains-mod", "products", "reasoning-gym", "file"]
    """arithmetic: built-in sums and products. chains: built-in sums with steps. chains-mod:
    built-in chains of sums and differences modulo 10. products: built-in products of three digits,
    asked with a calculator at hand. reasoning-gym: one of its generators. file: the user's own
    rows, or a data set of the Hugging Face hub."""
    dataset: str = ""
    """reasoning-gym: name of the generator."""
    size: Annotated[int, Field(ge=2, le=10_000_000)] = 1000
    """chains, chains-mod, products, reasoning-gym: number of rows to generate."""
    config: Settings = {}
    """chains: `terms`, numbers of a sum (4), and `examples`, sums worked out before each question
    (0). chains-mod: `operations`, steps of a chain (16). reasoning-gym: settings of the
    generator."""
    path: str = ""
    """file: rows by the suffix of the file: .parquet or .pq, a table; .csv or .tsv, a header line
    and values that are all texts, also where they look like numbers; any other, one JSON object a
    line. Or a data set of the Hugging Face hub, `hf://ORG/NAME[@REVISION][/CONFIG][:SPLIT]`, as
    `hf://openai/gsm8k/main:train` (`pip install 'banyan-rl[datasets]'`): split `train` if none is
    named, and the commit that it has when the run begins. Without a hub it is read from the cache
    in HF_HOME."""
    prompt: str = "prompt"
    """file: the field that holds the prompt: a text, or a list of {role, content}."""
    reward: str = ""
    """file: module:function, `def reward(completion: str, **row) -> float`; needed unless `filter`
    names scorers."""
    system: Annotated[str, Field(max_length=65_536)] = ""
    """System message put before every prompt; empty for none."""
    holdout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the rows that is never trained on, chosen by row digest."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of generated rows; separate from the run's seed, so that runs of several seeds share
    their rows."""

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the rows, which no scorer and no environment may read.

        A data set of the hub is among them as it is named; the verifier knows where its cache is.
        """
        return (self.path,) if self.name == "file" else ()

    @model_validator(mode="after")
    def _complete(self) -> "Task":
        if self.name == "reasoning-gym" and not self.dataset:
            raise ValueError(
                "task reasoning-gym needs `dataset`, the name of a generator such as countdown"
            )
        if self.name == "file" and not self.path:
            raise ValueError(
                "task file needs `path`, the file with its rows: JSON Lines, Parquet or CSV"
            )
        if self.name == "file" and hub_dataset.is_hub_dataset(self.path):
            hub_dataset.parse(self.path)
        return self
