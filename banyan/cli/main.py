"""`banyan`: the commands, and the one place where errors become a message and an exit status."""

import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from banyan.cli import (
    advantages,
    dead,
    lineage,
    page,
    recipes,
    simulate,
    tools,
    trees,
)
from banyan.cli.checkpoint import evaluate, sample
from banyan.cli.doctor import doctor
from banyan.cli.export import export
from banyan.cli.join import join
from banyan.cli.observe.observe import observe
from banyan.cli.render.console import err
from banyan.cli.report import report
from banyan.cli.rescore import rescore
from banyan.cli.runs import compare, runs
from banyan.cli.sft.sft import sft
from banyan.cli.train import demo, score, train
from banyan.errors import BanyanError, InvalidInput
from banyan.runtime.distribution import installed_version
from banyan.text.printable import textual

app = typer.Typer(
    name="banyan",
    help="Reinforcement learning of language models on rollout trees.",
    epilog="To begin: banyan demo. Of a command: banyan COMMAND --help.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"banyan {installed_version()}")
        raise typer.Exit


@app.callback()
def options(
    wanted: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Reinforcement learning of language models on rollout trees."""


_TRAIN = "Train"
_LOOK = "Look at runs and trees"
_USE = "Use a trained model"
_TRY = "Try a recipe without training"
_KEEP = "This machine and others"

app.command("demo", rich_help_panel=_TRAIN)(demo.demo)
app.command("train", rich_help_panel=_TRAIN)(train.train)
app.command("sft", rich_help_panel=_TRAIN)(sft)
app.add_typer(recipes.app, name="recipes", rich_help_panel=_TRAIN)
app.command("page", rich_help_panel=_LOOK)(page.page)
app.command("report", rich_help_panel=_LOOK)(report.report)
app.command("compare", rich_help_panel=_LOOK)(compare.compare)
app.command("lineage", rich_help_panel=_LOOK)(lineage.lineage)
app.command("advantages", rich_help_panel=_LOOK)(advantages.advantages)
app.command("rescore", rich_help_panel=_LOOK)(rescore.rescore)
app.command("observe", rich_help_panel=_LOOK)(observe)
app.add_typer(runs.app, name="runs", rich_help_panel=_LOOK)
app.add_typer(trees.app, name="trees", rich_help_panel=_LOOK)
app.command("eval", rich_help_panel=_USE)(evaluate.evaluate)
app.command("sample", rich_help_panel=_USE)(sample.sample)
app.command("chat", rich_help_panel=_USE)(sample.chat)
app.command("export", rich_help_panel=_USE)(export.export)
app.command("simulate", rich_help_panel=_TRY)(simulate.simulate)
app.command("score", rich_help_panel=_TRY)(score.score)
app.command("tools", rich_help_panel=_TRY)(tools.tools)
app.command("doctor", rich_help_panel=_KEEP)(doctor.doctor)
app.command("ps", rich_help_panel=_KEEP)(runs.ps)
app.command("join", rich_help_panel=_KEEP)(join.join)
app.command("token", rich_help_panel=_KEEP)(join.token)
app.add_typer(dead.app, name="dead", rich_help_panel=_KEEP)


def _unfold_help(commands: typer.Typer) -> None:
    """Join the lines of each paragraph of the commands' docstrings."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(words.split()) for words in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _unfold_help(group.typer_instance)


_unfold_help(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default the process's.

    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        app(arguments)
    except BanyanError as error:
        _print_error(str(error))
        sys.exit(2 if isinstance(error, InvalidInput) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader is gone: discard the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # a full disk, a folder that may not be written
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}")
        sys.exit(1)


def _check_text(arguments: Sequence[str]) -> None:
    """Raise InvalidInput for an argument that is no UTF-8.

    Ids, names and paths are sent and stored as UTF-8, but a shell may use another encoding.
    """
    for argument in arguments:
        if not textual(argument):
            raise InvalidInput(
                f"the argument {argument!r} is no UTF-8 text; name it otherwise, and rename such a "
                "file"
            )


def _print_error(text: str) -> None:
    # Text, because names of the user's may look like markup, with backslashes or without.
    err.print(Text.assemble(("error:", "bold red"), " ", text), soft_wrap=True)
