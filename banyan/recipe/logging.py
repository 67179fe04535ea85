"""Destinations of metrics beside the store."""

from pydantic import model_validator

from banyan.recipe.part import Name, Part, Settings


class Logging(Part):
    """Destinations of each step's metrics beside the store."""

    loggers: list[Name] = []
    """jsonl, tensorboard, wandb, mlflow (`pip install 'banyan-rl[loggers]'` for all but the first),
    or module:attribute."""
    settings: dict[str, Settings] = {}
    """Settings of each logger, by its name; `completions` asks for samples of prompts and answers.
    """

    @model_validator(mode="after")
    def _named(self) -> "Logging":
        twice = sorted({name for name in self.loggers if self.loggers.count(name) > 1})
        if twice:
            raise ValueError(f"loggers names {twice[0]} twice")
        unknown = sorted(set(self.settings) - set(self.loggers))
        if unknown:
            raise ValueError(f"settings are for {unknown[0]}, which loggers does not name")
        return self
