"""Upload of an exported model to a hub of models."""

import shlex
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput, TemporaryError
from banyan.text.printable import printable

# What was said in the run stays here: rows, answers, and settings of this machine.
LEFT_OUT = ("trees.jsonl", "run.json")
_ANSWER_S = 60.0  # for each part of an answer; the hub's client alone waits without an end


def check(repository: str) -> None:
    """Raise InvalidInput for a name that no repository can have."""
    from huggingface_hub import utils
    from huggingface_hub.errors import HFValidationError

    untyped: Any = utils
    try:
        untyped.validate_repo_id(repository)
    except HFValidationError as error:
        raise InvalidInput(f"--push {repository!r}: {_said(error)}") from None


def push(folder: Path, repository: str, private: bool) -> str:
    """Upload a folder as the newest commit of a repository, made if it is missing; return its URL.

    The hub is HF_ENDPOINT's, the token HF_TOKEN's or that of `hf auth login`. Raise InvalidInput
    for a name that is none, and for what the hub refuses; TemporaryError where it does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    check(repository)
    _bound_waits()
    hub = HfApi()
    try:
        url = hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=url.repo_id,
            folder_path=folder,
            commit_message="Trained with Banyan",
            ignore_patterns=list(LEFT_OUT),
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise InvalidInput(
                f"the hub refuses {repository} ({status}): {_said(error)}; set HF_TOKEN to a token"
                " that may write, or run `hf auth login`"
            ) from None
        raise TemporaryError(
            f"the hub failed on {repository} ({status}): {_said(error)};"
            f" {_later(folder, repository)}"
        ) from None
    except Exception as error:  # of whichever HTTP library the hub's client uses
        raise TemporaryError(
            f"the hub does not answer as hubs do: {type(error).__name__}: {_said(error)};"
            f" {_later(folder, repository)}. HF_ENDPOINT names another hub"
        ) from None
    return str(url)


def _bound_waits() -> None:
    """Have the hub's client wait for an answer only so long."""
    from huggingface_hub import get_session, set_client_factory

    session: Any = get_session()
    kind, hooks = type(session), session.event_hooks
    set_client_factory(lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=_ANSWER_S))


def _later(folder: Path, repository: str) -> str:
    """Return how to upload the folder later: without what stays here."""
    left_out = " ".join(f"--exclude {name}" for name in LEFT_OUT)
    command = f"hf upload {repository} {shlex.quote(str(folder))} . {left_out}"
    return f"the model is in {folder}; try again later with `{command}`"


def _said(error: Exception) -> str:
    return printable(" ".join(str(error).split()))[:300]
