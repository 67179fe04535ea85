"""Upload of an exported model to a hub of models."""

from pathlib import Path

from banyan.errors import InvalidInput, TemporaryError
from banyan.text.printable import printable

# What was said in the run stays here: rows, answers, and settings of this machine.
LEFT_OUT = ("trees.jsonl", "run.json")


def push(folder: Path, repository: str, private: bool) -> str:
    """Upload a folder as the newest commit of a repository, made if it is missing; return its URL.

    The hub is HF_ENDPOINT's, the token HF_TOKEN's or that of `hf auth login`. Raise InvalidInput
    for a name that is none, and for what the hub refuses; TemporaryError where it does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    hub = HfApi()
    try:
        url = hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=url.repo_id,
            folder_path=folder,
            commit_message="Trained with Banyan",
            ignore_patterns=list(LEFT_OUT),
        )
    except HFValidationError as error:
        raise InvalidInput(f"--push {repository!r}: {_said(error)}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise InvalidInput(
                f"the hub refuses {repository} ({status}): {_said(error)}; set HF_TOKEN to a token"
                " that may write, or run `hf auth login`"
            ) from None
        raise TemporaryError(
            f"the hub failed on {repository} ({status}): {_said(error)}; the model is in {folder},"
            f" try again later"
        ) from None
    except Exception as error:  # of whichever HTTP library the hub's client uses
        raise TemporaryError(
            f"the hub does not answer: {_said(error)}; the model is in {folder}. HF_ENDPOINT names"
            " another hub"
        ) from None
    return str(url)


def _said(error: Exception) -> str:
    return printable(" ".join(str(error).split()))[:300]
