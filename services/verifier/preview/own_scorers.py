"""Trial of Banyan's own scorers on a row, without a child, a jail or an endpoint."""

from collections.abc import Generator, Mapping
from typing import Any

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Row, Unscorable
from banyan.plugins.ask import ASKERS
from banyan.plugins.filter import EXAMINERS, UNCONFINED
from services.verifier.filter.call import call


def check_row(name: str, settings: Mapping[str, Any], row: Row, sample: str) -> None:
    """Raise InvalidInput if a scorer has no score for this row, whatever is said.

    Of `code` and `judge` that is seen before a program runs or a question is asked. Other names
    pass.
    """
    if name in UNCONFINED:
        scorer = registry.build("filter", name, settings)
        result = call(scorer, {"completion": sample, "row": row})
    elif name in EXAMINERS:
        result = _first(registry.build("filter", name, settings).examine(sample, row))
    elif name in ASKERS:
        result = _first(registry.build("filter", name, settings).ask(sample, row))
    else:
        return
    if isinstance(result, Unscorable):
        raise InvalidInput(no_score(name, sample, row, result))


def no_score(name: str, sample: str, row: Row, result: Unscorable) -> str:
    """Return the message for a scorer that gives no score on the first row."""
    return (
        f"scorer {name!r} gave no score for {sample!r} on the first row, whose fields are"
        f" {', '.join(map(str, row))[:300]}: {result.reason}. `banyan score` shows what it makes of"
        " other completions"
    )


def _first(questions: Generator[Any, Any, Any]) -> Any:
    """Return the first that a scorer asks for, or its score."""
    try:
        return next(questions)
    except StopIteration as end:
        return end.value
