"""Which rank this process is, by the variables that torchrun sets. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from banyan.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this process is, by its environment. local: its rank on its machine, and how many there are,
    where that is said."""

    rank: int
    size: int
    local: tuple[int, int] | None = None


def place(environ: Mapping[str, str]) -> Place | None:
    """None where nobody started ranks. Raises InvalidInput."""
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    try:
        here, of = environ.get("LOCAL_RANK"), environ.get("LOCAL_WORLD_SIZE")
        local = None if here is None or of is None else (int(here), int(of))
        found = Place(int(environ["RANK"]), int(environ["WORLD_SIZE"]), local)
    except (KeyError, ValueError):
        said = {
            name: environ.get(name)
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        }
        raise InvalidInput(
            f"what says which rank this is must be numbers, got {said}; start ranks with torchrun"
        ) from None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing or not 0 <= found.rank < found.size:
        raise InvalidInput(
            f"rank {found.rank} of {found.size} with {missing or 'no variable'} missing; start ranks with torchrun"
        )
    return found
