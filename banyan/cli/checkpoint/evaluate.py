"""`banyan eval`: accuracy of a checkpoint on the held-out rows of a task."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from banyan.cli import recipes
from banyan.cli.checkpoint.answers import Answer, sampling_of
from banyan.cli.checkpoint.sample import Longest, Model, Seed, Temperature, loaded
from banyan.cli.checkpoint.target import Target, found
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, emit_json, err, out
from banyan.cli.train import search_path
from banyan.cli.train.file_locations import located
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.runtime.waiting import Waiting
from banyan.wire import plain_data


@dataclass(frozen=True, slots=True)
class Scored:
    """An answer to a row with its reward; None if it could not be scored."""

    row: dict[str, Any]
    answer: Answer
    reward: float | None
    reasons: tuple[str, ...]


def evaluate(
    model: Model,
    task: Annotated[
        str, typer.Option("--task", help="Recipe whose task and scorers count; else the run's.")
    ] = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of that recipe.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Most rows; 0 for eval.max_rows.")] = 0,
    every_row: Annotated[
        bool, typer.Option("--all-rows", help="All rows of the task, training rows included.")
    ] = False,
    samples: Annotated[int, typer.Option("-n", min=1, max=1024, help="Answers to each row.")] = 1,
    temperature: Temperature = 0.0,
    max_new_tokens: Longest = None,
    seed: Seed = 0,
    answers: Annotated[
        bool, typer.Option("--answers", help="Print each answer as a line of JSON, too.")
    ] = False,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Measure a run's newest checkpoint, or a model's folder, on the held-out rows of a task.

    Scorers are those of `eval.filter`, or else of `filter`. Nothing is stored.
    """
    if samples > 1 and not temperature:
        raise InvalidInput("--temperature 0 has one answer to a row: leave -n out")
    target = found(model, state)
    recipe, folders = _recipe(target, task, overrides or (), state)
    with search_path.searched(folders):
        chosen = _rows(recipe, rows, every_row)
        sampling = sampling_of(
            recipe, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed
        )
        err.print(f"{target.name}: {len(chosen)} rows of {recipe.name}", markup=False)
        results = _scored(recipe, target, chosen, samples, sampling)
    if answers:
        for result in results:
            emit_json(_line(result))
    _print(_summary(results, target, recipe), as_json)


def _recipe(
    target: Target, task: str, overrides: Sequence[str], state: Path
) -> tuple[Recipe, list[Path]]:
    """Return the recipe whose task and scorers count, and the folders of its code."""
    if task:
        file = recipes.find(task)
        recipe, folders = located(recipes.read(task, overrides), file), recipes.folders(file)
    elif overrides:
        raise InvalidInput("--set changes the recipe of --task; name one")
    elif target.recipe is None:
        raise InvalidInput(f"{target.name} is a folder, which has no task: name one with --task")
    else:
        known = search_path.remembered(state, [Path.cwd()])
        recipe, folders = target.recipe, [Path(folder) for folder in known]
    if recipe.environment is not None:
        raise InvalidInput(
            f"{recipe.name} answers within an environment, and banyan eval asks for one answer"
            " without; the run's own evaluations measure it"
        )
    # The scorers of evaluations are the ones that count here.
    measured = recipe.eval.filter or recipe.filter
    eval_part = recipe.eval.model_copy(update={"filter": [], "votes": None})
    return recipe.model_copy(update={"filter": measured, "eval": eval_part}), folders


def _rows(recipe: Recipe, most: int, every_row: bool) -> list[dict[str, Any]]:
    from services.gateway.tasks import dataset

    examples = dataset.read(recipe, Path.cwd())
    chosen = [*examples.held_out, *(examples.train if every_row else ())]
    if not chosen:
        raise InvalidInput(
            f"{recipe.name} holds out no row; --all-rows measures on the rows that it trains on"
        )
    return chosen[: most or recipe.eval.max_rows]


def _scored(
    recipe: Recipe, target: Target, rows: Sequence[dict[str, Any]], samples: int, sampling: Any
) -> list[Scored]:
    from services.gateway import tasks
    from services.verifier.preview import trial_scores

    prompts = [tasks.messages(row, recipe.task) for row in rows for _ in range(samples)]
    answerer = loaded(recipe, target)
    with Waiting("answering", lambda: f"{answerer.answered} of {len(prompts)}", patient=True):
        found_answers = answerer.answers(prompts, sampling)
    groups = [found_answers[n * samples : (n + 1) * samples] for n in range(len(rows))]
    pairs = [
        (row, [answer.text for answer in group]) for row, group in zip(rows, groups, strict=True)
    ]
    results = []
    with Waiting("scoring", patient=True):
        judged = asyncio.run(trial_scores.score_rows(recipe, pairs))
    for row, group, of_row in zip(rows, groups, judged, strict=True):
        for answer, (scores, reward) in zip(group, of_row, strict=True):
            reasons = [getattr(score.verdict.outcome, "reason", "") for score in scores]
            results.append(Scored(row, answer, reward, tuple(filter(None, reasons))))
    return results


def _summary(results: Sequence[Scored], target: Target, recipe: Recipe) -> dict[str, Any]:
    rewards = [result.reward for result in results if result.reward is not None]
    right, n = sum(reward >= 1.0 for reward in rewards), len(rewards)
    reasons = [reason for result in results for reason in result.reasons]
    return {
        "model": target.name,
        "task": recipe.name,
        "n": n,
        "unscorable": len(results) - n,
        "accuracy": right / n if n else None,
        "wilson_95": list(plain_data.wilson(right, n)) if n else None,
        "mean_reward": sum(rewards) / n if n else None,
        "length_limited": sum(result.answer.finish == "LENGTH" for result in results),
        "reason": reasons[0] if reasons else None,
    }


def _line(result: Scored) -> dict[str, Any]:
    return {"row": result.row, "answer": result.answer.text, "reward": result.reward}


def _print(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(summary, True)
        return
    if not summary["n"]:
        out.print(f"no answer could be scored, such as: {summary['reason']}", markup=False)
        raise typer.Exit(1)
    low, high = (100 * bound for bound in summary["wilson_95"])
    out.print(
        f"accuracy {100 * summary['accuracy']:.1f} % (95 % interval {low:.1f} – {high:.1f}), mean"
        f" reward {summary['mean_reward']:.3f}, of {summary['n']} answers",
        soft_wrap=True,
    )
    if summary["unscorable"]:
        out.print(
            f"{summary['unscorable']} could not be scored, such as: {summary['reason']}",
            markup=False,
            soft_wrap=True,
        )
    if summary["length_limited"]:
        out.print(f"{summary['length_limited']} answers were ended by their limit of tokens")
