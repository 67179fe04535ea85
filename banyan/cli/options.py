"""Options that many commands share."""

from pathlib import Path
from typing import Annotated

import typer

State = Annotated[
    Path,
    typer.Option("--state", envvar="BANYAN_STATE", help="Folder that keeps store, logs and runs."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DEFAULT_STATE = Path(".banyan")
