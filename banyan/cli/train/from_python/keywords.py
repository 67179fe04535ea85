"""Keywords of other trainers that users try with `banyan.train`, and what to write instead."""

from collections.abc import Iterable

from banyan.errors import InvalidInput

_INSTEAD = {
    "args": "its settings as keys of the recipe",
    "eval_dataset": 'task={"holdout": 0.2}',
    "learning_rate": 'optimise={"learning_rate": 1e-6}',
    "max_completion_length": 'generate={"max_new_tokens": 256}',
    "max_steps": "steps",
    "num_generations": 'generate={"policy": "iid", "settings": {"width": 8}}',
    "peft_config": 'optimise={"lora": {}}',
    "report_to": 'logging={"loggers": ["wandb"]}',
    "reward_func": "reward",
    "reward_funcs": "reward",
    "rewards": "reward",
    "rows": "dataset",
    "temperature": 'generate={"temperature": 1.0}',
    "train_dataset": "dataset",
}


def check_keywords(names: Iterable[str]) -> None:
    """Raise InvalidInput for a keyword of another trainer, with ours in its place."""
    for name in names:
        if name in _INSTEAD:
            raise InvalidInput(
                f"banyan.train has no keyword {name}; write {_INSTEAD[name]}"
                " (docs/tutorial/coming-from-trl.md has all counterparts)"
            )
