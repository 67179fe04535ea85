"""Program that reads a data set of the Hugging Face hub, for sources/hub.py.

It is a process of its own, because the hub's libraries wait as long as they like and keep settings
for a whole process. `python -m …hub_reader fix|rows PATH LIMIT_S` writes lines of JSON: where the
rows come from, then their number and an Arrow stream, or why there are none.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from banyan.recipe.hub_dataset import HubDataset, parse

PROBE_S = 10.0
"""Longest wait for the hub's first answer."""
_BATCH = 1000  # rows


class Refusal(Exception):
    """End of a reading, with its cause and the kind of its remedy."""

    def __init__(self, remedy: str, cause: str) -> None:
        super().__init__(cause)
        self.remedy = remedy


class Unreachable(Exception):
    """A hub that does not answer."""


def _commit(dataset: HubDataset) -> str:
    """Return the commit of a data set on the hub.

    Raise Unreachable, or Refusal if the hub has no such data set for this user.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        revision = dataset.revision or None
        known = HfApi().dataset_info(dataset.repo, revision=revision, timeout=PROBE_S)
    except RevisionNotFoundError:
        raise Refusal("name", f"it has no revision {dataset.revision!r}") from None
    except GatedRepoError as error:
        raise Refusal("access", _brief(error)) from None
    except RepositoryNotFoundError:
        cause = "the hub has no such data set, or shows it only to those who are logged in"
        raise Refusal("access", cause) from None
    except Exception as error:  # offline, or what the HTTP library has for a dead network
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            raise Refusal("access", _brief(error)) from None
        raise Unreachable(_brief(error)) from None
    return str(known.sha)


def _opened(dataset: HubDataset) -> tuple[HubDataset, Callable[[], Any], str]:
    """Return a data set with commit and configuration, its reading, and why no hub was reached.

    A cached copy is taken unasked only if both are named: the hub alone knows what is meant
    otherwise. Raise Refusal if it is neither on the hub nor cached.
    """
    unreachable = ""
    copies = _copies(dataset) if dataset.is_fixed and dataset.config else []
    if not copies:
        try:
            dataset = dataset.at(_commit(dataset), dataset.config)
            copies = _copies(dataset) if dataset.config else []
        except Unreachable as error:
            unreachable = str(error)
            copies = _meant(dataset, unreachable)
    if not copies:
        builder = _builder(dataset)
        dataset = dataset.at(dataset.revision, builder.config.name)
        return dataset, partial(_of_hub, dataset, builder), ""
    newest = copies[-1]
    dataset = dataset.at(newest.name, _config(newest))
    return dataset, partial(_of_cache, dataset, newest), unreachable


def _meant(dataset: HubDataset, unreachable: str) -> list[Path]:
    """Return the cached copies that a data set means. Raise Refusal if no single one is meant."""
    cause = f"the hub cannot be reached ({unreachable})"
    if dataset.revision and not dataset.is_fixed:
        raise Refusal("copy", f"{cause}, and it alone knows the commit of {dataset.revision!r}")
    copies = _copies(dataset)
    if not copies:
        raise Refusal("copy", f"{cause}, and no copy is cached")
    if len(configs := sorted({_config(copy) for copy in copies})) > 1:
        raise Refusal(
            "name", f"{cause}, and the configurations {', '.join(configs)} are cached; name one"
        )
    return copies


def _copies(dataset: HubDataset) -> list[Path]:
    """Return the cached copies, the newest last: folders NAME/CONFIG/VERSION/COMMIT."""
    from datasets import config
    from datasets.naming import camelcase_to_snakecase

    organisation, name = dataset.repo.split("/")
    folder = Path(config.HF_DATASETS_CACHE).expanduser()
    folder /= f"{organisation}___{camelcase_to_snakecase(name)}"
    commit = dataset.revision if dataset.is_fixed else "[0-9a-f]" * 40
    copies = [
        copy
        for copy in folder.glob(f"*/*/{commit}")
        if (copy / "dataset_info.json").is_file() and dataset.config in ("", _config(copy))
    ]
    return sorted(copies, key=lambda copy: copy.stat().st_mtime)


def _config(copy: Path) -> str:
    return str(json.loads((copy / "dataset_info.json").read_bytes())["config_name"])


def _of_cache(dataset: HubDataset, copy: Path) -> Any:
    """Return the Arrow table of a cached copy.

    `load_dataset` would take the newest copy, whatever its commit, and write locks beside it, which
    a cache that may only be read refuses.
    """
    from datasets import DatasetInfo
    from datasets.arrow_reader import ArrowReader
    from datasets.naming import camelcase_to_snakecase

    info = DatasetInfo.from_directory(str(copy))
    name = camelcase_to_snakecase(dataset.repo.split("/")[1])
    read = ArrowReader(str(copy), info).read(
        name=name, instructions=dataset.split, split_infos=(info.splits or {}).values()
    )
    return read["arrow_table"].table


def _builder(dataset: HubDataset) -> Any:
    from datasets import load_dataset_builder
    from datasets.exceptions import DatasetNotFoundError
    from datasets.packaged_modules.cache.cache import Cache

    # The prefix keeps it from taking a folder of this name in the working folder.
    name = f"hf://datasets/{dataset.repo}"
    try:
        builder = load_dataset_builder(name, dataset.config or None, revision=dataset.revision)
    except DatasetNotFoundError as error:
        raise Refusal("access", _brief(error)) from None
    if isinstance(builder, Cache) or builder.hash != dataset.revision:
        raise Refusal("copy", f"the hub does not give its files at commit {dataset.revision}")
    return builder


def _of_hub(dataset: HubDataset, builder: Any) -> Any:
    """Return the Arrow table of a data set, fetched into the cache."""
    builder.download_and_prepare()
    return builder.as_dataset(split=dataset.split).data.table


def _brief(error: BaseException) -> str:
    """Return what an error says, without links to pages that explain status codes."""
    lines = [line.strip() for line in str(error).splitlines() if "For more info" not in line]
    return " ".join([line for line in lines if line][:2])[:500] or type(error).__name__


def _read(mode: str, dataset: HubDataset, tell: Callable[..., None], out: BinaryIO) -> None:
    if find_spec("datasets") is None:
        raise Refusal("install", "reading it needs the package datasets")
    import pyarrow.ipc

    dataset, load, unreachable = _opened(dataset)
    tell(path=str(dataset), unreachable=unreachable)
    if mode == "fix":
        return
    table = load()
    signal.alarm(0)  # from here on a pipe that nobody reads ends us
    tell(rows=table.num_rows)
    with pyarrow.ipc.new_stream(out, table.schema) as stream:
        for batch in table.to_batches(max_chunksize=_BATCH):
            stream.write_batch(batch)


def main() -> None:
    """Serve one reading."""
    mode, path, limit_s = sys.argv[1:]
    # The reader of our output ends us; if it was killed itself, the kernel does.
    signal.alarm(int(limit_s))
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what libraries print is no part of the answer

        def tell(**facts: Any) -> None:
            out.write(json.dumps(facts).encode() + b"\n")
            out.flush()

        try:
            _read(mode, parse(path), tell, out)
        except ImportError as error:
            tell(refused=str(error), remedy="install")
        except Refusal as refusal:
            tell(refused=str(refusal), remedy=refusal.remedy)
        except ValueError as error:  # no such configuration or split, and those that there are
            tell(refused=_brief(error), remedy="name")
        except BrokenPipeError:
            os._exit(0)  # nobody reads on
        except Exception as error:  # the hub's libraries raise what they like
            tell(refused=f"{type(error).__name__}: {_brief(error)}", remedy="copy")


if __name__ == "__main__":
    main()
