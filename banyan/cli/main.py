"""`banyan`: the commands, and the one place where errors become a message and an exit status."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from banyan.cli import advantages, dead, export, join, lineage, recipes, simulate, trees
from banyan.cli.doctor import doctor
from banyan.cli.render.console import err
from banyan.cli.runs import runs
from banyan.cli.train import train
from banyan.errors import BanyanError, InvalidInput
from banyan.text.printable import textual

app = typer.Typer(
    name="banyan",
    help="Reinforcement learning of language models on rollout trees.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"banyan {version('banyan')}")
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


app.command("train")(train.train)
app.command("simulate")(simulate.simulate)
app.add_typer(runs.app, name="runs")
app.add_typer(trees.app, name="trees")
app.command("lineage")(lineage.lineage)
app.add_typer(recipes.app, name="recipes")
app.command("ps")(runs.ps)
app.command("join")(join.join)
app.command("token")(join.token)
app.add_typer(dead.app, name="dead")
app.command("doctor")(doctor.doctor)
app.command("advantages")(advantages.advantages)
app.command("export")(export.export)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are by default the process's. Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        app(arguments)
    except BanyanError as error:
        err.print(f"[bold red]error:[/bold red] {_plain(str(error))}", soft_wrap=True)
        sys.exit(2 if isinstance(error, InvalidInput) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # nobody reads what is left to be written
        sys.exit(0)
    except OSError as error:  # a full disk, a folder that may not be written
        where = f"{error.filename}: " if error.filename else ""
        err.print(
            f"[bold red]error:[/bold red] {_plain(f'{where}{error.strerror or error}')}",
            soft_wrap=True,
        )
        sys.exit(1)


def _check_text(arguments: Sequence[str]) -> None:
    """Ids, names and paths are sent and stored as UTF-8. What a shell hands over in another encoding is named here, once."""
    for argument in arguments:
        if not textual(argument):
            raise InvalidInput(
                f"the argument {argument!r} is no UTF-8 text; name it otherwise, and rename such a file"
            )


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
