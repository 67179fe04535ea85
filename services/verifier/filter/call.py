"""The call of a scorer, with what it asks for: completion, row and perhaps transcript."""

from collections.abc import Mapping
from typing import Any

from banyan.plugins import traits
from banyan.plugins.transcript import of_turns


def call(scorer: Any, request: Mapping[str, Any]) -> Any:
    """Return what a scorer gives for {completion or completions, row, turns}.

    turns: those of the completion as plain data, or a list of them for each completion; a request
        without them is about paths that had no answer.
    """
    needs = traits.of_scorer(scorer).needs_transcript
    row = request["row"]
    if "completions" in request:
        completions = request["completions"]
        if not needs:
            return scorer.score_group(completions, row)
        turns = request.get("turns") or [()] * len(completions)
        transcripts = [of_turns(*one) for one in zip(turns, completions, strict=True)]
        return scorer.score_group(completions, row, transcripts)
    completion = request["completion"]
    if not needs:
        return scorer.score(completion, row)
    return scorer.score(completion, row, of_turns(request.get("turns", ()), completion))
