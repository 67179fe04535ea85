"""The call of a scorer, with what it asks for: completion, row and perhaps transcript or head."""

from collections.abc import Mapping
from typing import Any

from banyan.plugins import traits
from banyan.plugins.transcript import of_turns


def call(scorer: Any, request: Mapping[str, Any]) -> Any:
    """Return what a scorer gives for {completion or completions, row, turns, heads}.

    turns: those of the completion as plain data, or a list of them for each completion; a request
        without them is about paths that had no answer.
    heads: last score of the learned head on each completion's path, None where it has none; a
        request without them is about paths that have none.
    """
    if "completions" in request:
        return _call_group(scorer, request)
    row = request["row"]
    completion = request["completion"]
    if not traits.of_scorer(scorer).needs_transcript:
        return scorer.score(completion, row)
    return scorer.score(completion, row, of_turns(request.get("turns", ()), completion))


def _call_group(scorer: Any, request: Mapping[str, Any]) -> Any:
    completions, row = request["completions"], request["row"]
    declared = traits.of_scorer(scorer)
    if declared.needs_heads:
        heads = request.get("heads") or [None] * len(completions)
        return scorer.score_group(completions, row, heads)
    if not declared.needs_transcript:
        return scorer.score_group(completions, row)
    turns = request.get("turns") or [()] * len(completions)
    transcripts = [of_turns(*one) for one in zip(turns, completions, strict=True)]
    return scorer.score_group(completions, row, transcripts)
