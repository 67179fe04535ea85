"""Packs pieces of trees into rows that one forward pass computes. Pure numpy.

A row is a run of tokens, a list of blocks (its pieces, which do not see each other), the predictions that its paths need,
and an index that gathers them back to paths. What is the same for all is computed once: a trunk that all prompts of the row
begin with (a chat template, a system message), and equal predictions (place, temperature, token).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from services.learner.packing import head_observations as watched
from services.learner.packing.head_observations import Watched
from services.learner.packing.unroll import Bools, Floats, Ints, TreePart


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """`_N` unique tokens, `_R` places whose logits are needed, `_E` predictions (sorted by place), `_P_T` paths.

    The first `trunk` tokens are seen by every block; they belong to none. `watched`: what the row teaches the head.
    """

    token_N: Ints
    position_N: Ints
    enter_N: Ints
    leave_N: Ints
    trunk: int
    blocks: tuple[tuple[int, int], ...]
    place_R: Ints
    temperature_R: Floats
    row_E: Ints
    token_E: Ints
    index_P_T: Ints
    mask_P_T: Bools
    behaviour_P_T: Floats
    drawn_P_T: Floats
    foreign_P_T: Bools
    advantage_P_T: Floats
    share_P_T: Floats
    origin_P_T: Ints
    watched: Watched = watched.NOTHING


def pack(pieces: Iterable[TreePart], budget: int) -> list[PackedSequence]:
    """Rows of at most `budget` tokens, first fit in order. A piece above the budget has a row of its own."""
    rows: list[list[TreePart]] = []
    room: list[int] = []
    for piece in pieces:
        if not any(len(path.token_T) for path in piece.paths):
            continue
        at = next((i for i, free in enumerate(room) if len(piece) <= free), None)
        if at is None:
            rows.append([])
            room.append(budget)
            at = len(rows) - 1
        rows[at].append(piece)
        room[at] -= len(piece)
    return [_row(pieces) for pieces in rows]


def _common(pieces: Sequence[TreePart]) -> int:
    """Tokens that all pieces' prompts begin with; 0 for a single piece. Every piece keeps a token of its own."""
    if len(pieces) < 2:
        return 0
    limit = min(min(int((p.enter_N == p.enter_N[0]).sum()), len(p) - 1) for p in pieces)
    same = np.all([p.token_N[:limit] == pieces[0].token_N[:limit] for p in pieces], axis=0)
    return limit if same.all() else int(same.argmin())


def _row(pieces: Sequence[TreePart]) -> PackedSequence:
    trunk = _common(pieces)
    starts = np.cumsum([trunk, *(len(p) - trunk for p in pieces)])
    paths = [
        (path, int(at))
        for piece, at in zip(pieces, starts, strict=False)
        for path in piece.paths
        if len(path.token_T)
    ]
    place = np.concatenate([_moved(p.predictor_T, trunk, at) for p, at in paths])
    temperature = np.concatenate([path.temperature_T for path, _ in paths])
    token = np.concatenate([path.token_T for path, _ in paths])
    temperatures, kind = np.unique(temperature, return_inverse=True)
    wanted_R, row = np.unique(place * len(temperatures) + kind, return_inverse=True)
    width = int(token.max()) + 1
    pair_E, index = np.unique(row * width + token, return_inverse=True)
    mask_P_T = _padded([np.ones(len(p.token_T), np.bool_) for p, _ in paths], np.bool_)
    index_P_T = np.zeros(mask_P_T.shape, np.int64)
    index_P_T[mask_P_T] = index

    def tokens(name: str) -> Any:
        return np.concatenate(
            [getattr(pieces[0], name)[:trunk], *(getattr(p, name)[trunk:] for p in pieces)]
        )

    def padded(name: str, dtype: type) -> Any:
        return _padded([getattr(p, name) for p, _ in paths], dtype)

    return PackedSequence(
        token_N=tokens("token_N"),
        position_N=tokens("position_N"),
        enter_N=tokens("enter_N"),
        leave_N=tokens("leave_N"),
        trunk=trunk,
        blocks=tuple((int(a), int(b)) for a, b in pairwise(starts)),
        place_R=wanted_R // len(temperatures),
        temperature_R=temperatures[wanted_R % len(temperatures)],
        row_E=pair_E // width,
        token_E=pair_E % width,
        index_P_T=index_P_T,
        mask_P_T=mask_P_T,
        behaviour_P_T=padded("behaviour_T", np.float64),
        drawn_P_T=padded("drawn_T", np.float64),
        foreign_P_T=padded("foreign_T", np.bool_),
        advantage_P_T=padded("advantage_T", np.float64),
        share_P_T=padded("share_T", np.float64),
        origin_P_T=padded("origin_T", np.int64),
        watched=watched.joined(
            (p.watched, _moved(p.watched.place_S, trunk, at)) for p, at in paths
        ),
    )


def _moved(place: Ints, trunk: int, at: int) -> Ints:
    """Where a piece's places are in its row."""
    return np.where(place < trunk, place, place + at - trunk)


def _padded(values: Sequence[Any], dtype: type) -> Any:
    """One array a row, zeros behind the shorter ones."""
    out: Any = np.zeros((len(values), max(len(v) for v in values)), dtype)
    for line, value in zip(out, values, strict=True):
        line[: len(value)] = value
    return out
