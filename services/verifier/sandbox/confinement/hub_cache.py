"""Folders in which the libraries of the Hugging Face hub keep what they fetch."""

import os
from collections.abc import Iterator

_HOME = "~/.cache"
_FOLDERS = {
    "HF_HUB_CACHE": "hub",
    "HUGGINGFACE_HUB_CACHE": "hub",
    "HF_XET_CACHE": "xet",
    "HF_DATASETS_CACHE": "datasets",
    "HF_DATASETS_DOWNLOADED_DATASETS_PATH": "datasets/downloads",
    "HF_DATASETS_EXTRACTED_DATASETS_PATH": "datasets/downloads/extracted",
}
"""Folder below HF_HOME by the variable that puts it elsewhere."""


def folders() -> Iterator[str]:
    """Yield the absolute paths of these folders, as the environment of this process names them."""
    cache = os.environ.get("XDG_CACHE_HOME", _HOME)
    home = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    for variable, name in _FOLDERS.items():
        folder = os.environ.get(variable, os.path.join(home, name))
        yield os.path.abspath(os.path.expanduser(os.path.expandvars(folder)))
