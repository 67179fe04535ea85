"""`banyan sample` and `banyan chat`: what a checkpoint answers."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from banyan.cli.checkpoint.answers import Answerer, sampling_of
from banyan.cli.checkpoint.target import Target, found
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, emit_text, err
from banyan.errors import InvalidInput
from banyan.recipe import Recipe, Task
from banyan.runtime.waiting import Waiting

Model = Annotated[
    str, typer.Argument(metavar="RUN|FOLDER", help="Run, for its newest checkpoint, or a folder.")
]
Temperature = Annotated[float, typer.Option(min=0.0, max=10.0, help="0 for the likeliest answer.")]
Longest = Annotated[
    int | None,
    typer.Option("--max-new-tokens", min=1, help="Tokens of an answer; else the recipe's."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the draws.")]
System = Annotated[str, typer.Option(help="System message; else the task's.")]


def sample(
    model: Model,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", help="A prompt; may be given repeatedly.")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--prompt-file", help="File of a prompt; - for input."),
    ] = None,
    count: Annotated[int, typer.Option("-n", min=1, max=1024, help="Answers to each prompt.")] = 1,
    temperature: Temperature = 1.0,
    max_new_tokens: Longest = None,
    system: System = "",
    seed: Seed = 0,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Print answers of a run's newest checkpoint, or of a model's folder, to prompts."""
    prompts = [*(prompt or ()), *map(_read, files or ())]
    if not prompts:
        raise InvalidInput("give a prompt with --prompt or --prompt-file")
    if count > 1 and not temperature:
        raise InvalidInput("--temperature 0 has one answer to a prompt: leave -n out")
    target = found(model, state)
    recipe = recipe_of(target)
    sampling = sampling_of(
        recipe, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed
    )
    asked = [(text, _messages(text, system or recipe.task.system)) for text in prompts]
    repeated = [messages for _, messages in asked for _ in range(count)]
    answerer = loaded(recipe, target)
    with Waiting("answering", lambda: f"{answerer.answered} of {len(repeated)}", patient=True):
        answers = answerer.answers(repeated, sampling)
    for place, answer in enumerate(answers):
        text = asked[place // count][0]
        if as_json:
            emit({"prompt": text, **asdict(answer)}, True)
        else:
            emit_text(f"{answer.text}\n" if len(answers) == 1 else f"--- {place}\n{answer.text}\n")


def chat(
    model: Model,
    temperature: Temperature = 1.0,
    max_new_tokens: Longest = None,
    system: System = "",
    seed: Seed = 0,
    state: State = DEFAULT_STATE,
) -> None:
    """Talk with a run's newest checkpoint, or with a model's folder; an empty line ends it."""
    target = found(model, state)
    recipe = recipe_of(target)
    answerer = loaded(recipe, target)
    err.print(f"{target.name}; an empty line ends it", markup=False, soft_wrap=True)
    messages = _messages("", system or recipe.task.system)[:-1]
    for number, line in enumerate(iter(_asked, "")):
        messages.append({"role": "user", "content": line})
        sampling = sampling_of(
            recipe, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed + number
        )
        answer = answerer.answers([messages], sampling)[0]
        messages.append({"role": "assistant", "content": answer.text})
        emit_text(f"{answer.text}\n")


def loaded(recipe: Recipe, target: Target) -> Answerer:
    """Load a model; a load that takes long is told."""
    with Waiting("loading the model", patient=True):
        return Answerer(recipe, target.folder)


def recipe_of(target: Target) -> Recipe:
    """Return the recipe of a model's run; of a folder the defaults."""
    if target.recipe is not None:
        return target.recipe
    return Recipe(name="sample", model=str(target.folder), task=Task(name="arithmetic"))


def _messages(text: str, system: str) -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": text}]


def _asked() -> str:
    """Return the next line; empty at the end. Bytes that are no UTF-8 become U+FFFD."""
    if sys.stdin.isatty():
        err.print("> ", end="")
    return sys.stdin.buffer.readline().decode(errors="replace").strip()


def _read(file: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode()
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is no UTF-8 text: {error.reason} at {error.start}") from None
