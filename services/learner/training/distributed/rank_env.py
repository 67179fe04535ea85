"""The rank of this process, from the environment variables that torchrun sets. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from banyan.errors import InvalidInput

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank among all.

    rank: number of this rank, from 0
    size: number of ranks
    local: its number on this machine, and how many ranks the machine has; None where unknown
    """

    rank: int
    size: int
    local: tuple[int, int] | None = None


def read_rank(environ: Mapping[str, str]) -> RankPlace | None:
    """Return the rank of this process, or None without ranks. Raises InvalidInput."""
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    try:
        local_rank, local_size = environ.get("LOCAL_RANK"), environ.get("LOCAL_WORLD_SIZE")
        known = local_rank is not None and local_size is not None
        local = (int(environ["LOCAL_RANK"]), int(environ["LOCAL_WORLD_SIZE"])) if known else None
        place = RankPlace(int(environ["RANK"]), int(environ["WORLD_SIZE"]), local)
    except (KeyError, ValueError):
        values = {name: environ.get(name) for name in _NUMBERS}
        raise InvalidInput(
            f"the variables of a rank must be numbers, got {values}; start ranks with torchrun"
        ) from None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing or not 0 <= place.rank < place.size:
        raise InvalidInput(
            f"rank {place.rank} of {place.size} with {missing or 'no variable'} missing;"
            " start ranks with torchrun"
        )
    return place
