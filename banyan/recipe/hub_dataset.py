"""Data sets of the Hugging Face hub, as a task's path names them."""

import re
from dataclasses import dataclass, replace

PREFIX = "hf://"
FORM = "hf://ORG/NAME[@REVISION][/CONFIG][:SPLIT]"
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAMED = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})"
    rf"(@(?P<revision>{_WORD}))?"
    r"(/(?P<config>[^/:<>\\|?*\x00-\x1f]{1,200}))?"
    r"(:(?P<split>[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*))?"
)
_PAGE = re.compile(rf"(?:https?://)?(?:www\.)?huggingface\.co/datasets/({_WORD}/{_WORD})")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A split of a data set.

    repo: organisation or user, and name.
    revision: branch, tag or commit; empty for the newest.
    config: configuration (subset); empty for the only or the default one.
    split: name of the split.
    """

    repo: str
    revision: str = ""
    config: str = ""
    split: str = "train"

    def __str__(self) -> str:
        revision = self.revision and f"@{self.revision}"
        config = self.config and f"/{self.config}"
        return f"{PREFIX}{self.repo}{revision}{config}:{self.split}"

    @property
    def is_fixed(self) -> bool:
        """True if it names a commit, whose rows never change."""
        return _COMMIT.fullmatch(self.revision) is not None

    def at(self, commit: str, config: str) -> "HubDataset":
        """Return the configuration of the data set as it is at a commit."""
        return replace(self, revision=commit, config=config)


def is_hub_dataset(path: str) -> bool:
    """Return whether a path means a data set of the hub, well formed or not."""
    return path.startswith(PREFIX)


def hub_form(path: str) -> str:
    """Return words with the form of a data set that a path seems to mean without it; else
    none."""
    if matched := _PAGE.match(path):
        return f"; for the data set of the hub write {PREFIX}{matched[1]}"
    if re.fullmatch(rf"{_WORD}/{_WORD}", path) and not re.search(r"\.[a-z]+$", path):
        return f"; if a data set of the hub is meant, write {PREFIX}{path}"
    return ""


def parse(path: str) -> HubDataset:
    """Return the data set that a path names. Raise ValueError with the form of such a path."""
    matched = _NAMED.fullmatch(path.removeprefix(PREFIX))
    if not is_hub_dataset(path) or matched is None:
        raise ValueError(
            f"{path!r} names no data set of the hub; write {FORM}, such as"
            " hf://openai/gsm8k/main:train, where [] means that a part may be left out"
        )
    if matched["repo"].startswith("datasets/"):
        raise ValueError(f"{path!r}: leave `datasets/` out and write {FORM}")
    named = {name: value for name, value in matched.groupdict().items() if value}
    return HubDataset(**named)
