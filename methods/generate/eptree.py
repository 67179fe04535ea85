"""eptree: finished chains, forked at their least likely tokens.

Paper: Hou et al. 2025, TreeRL, arXiv 2506.11902
Formula: forks at the N largest −log p of sampled tokens; M·(1 + L·N·T) leaves

M chains from the prompt are the trunks of M trees. L times, each tree takes its N tokens with the
largest −log p of the sampled token; each is sampled again T times, to the path's end. Trees do not
wait for each other. Not forked at: the first token of a side branch (its place is its own fork),
tokens after a masked word, and tokens of earlier rounds; if fewer than N are left, those of earlier
rounds come again, and then the available tokens share the continuations in turn. So the number of
leaves is exact.

A plan knows tokens and text, but not their alignment: a masked word's end is found by its share of
the characters. That is exact where tokens are characters, and else as even as the text.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from banyan.plugins import checks
from banyan.segment import Finish
from methods.generate.coroutine_policy import Growing, Growth, Place
from methods.generate.cuts import Run
from methods.generate.rollouts import Rollout, roll_out

Fork = tuple[Place, int]  # place, and the number of policy tokens before it


@dataclass(frozen=True)
class EPTree(Growing):
    """Entropy-guided tree search: forks at surprising tokens of finished chains."""

    toy = "one_fork"
    forks_inside = True

    chains: int = 6
    """M: independent samples of the prompt, each the trunk of a tree."""
    forks: int = 2
    """N: tokens that a tree forks at in a round."""
    rounds: int = 1
    """L: rounds of forking; from the second on, side branches are forked too."""
    continuations: int = 2
    """T: samples from each fork."""
    masked: Sequence[str] = ("answer", "conclusion")
    """Words, in any case, after which a chain is not forked: the text behind them states the
    result."""

    def __post_init__(self) -> None:
        checks.whole(self, ("chains", "forks", "continuations"), 1)
        checks.whole(self, ("rounds",), 0)
        if isinstance(self.masked, str) or not all(
            isinstance(word, str) and word for word in self.masked
        ):
            raise ValueError(f"masked must be a list of words, got {self.masked!r}")

    @property
    def width(self) -> int:
        """Leaves of a tree."""
        return self.chains * (1 + self.rounds * self.forks * self.continuations)

    async def grow(self, growth: Growth) -> None:
        """Sample all chains at once, and each one's rounds when it has ended."""
        width = growth.width(self.width)
        number = chains = min(self.chains, width)
        for chain in range(chains):
            share = (width - chains) // chains + (chain < (width - chains) % chains)
            growth.start(self._tree(growth, chain, range(number, number + share)))
            number += share

    async def _tree(self, growth: Growth, chain: int, numbers: range) -> None:
        """Sample a chain, and its rounds of forks under these numbers."""
        tree = [await roll_out(growth, chain, growth.root, 0)]
        forked: list[Fork] = []
        most = self.forks * self.continuations
        for first in range(0, len(numbers), most):
            forks = self._forks(tree, forked)
            branches = enumerate(numbers[first : first + most])
            started = [
                growth.start(roll_out(growth, n, *forks[i // self.continuations % len(forks)]))
                for i, n in branches
            ]
            tree += [await slot for slot in started]
            forked += [fork for fork in forks if fork not in forked]

    def _forks(self, tree: list[Rollout], forked: list[Fork]) -> list[Fork]:
        """Return the N tokens of a tree with the largest surprisal; the first one wins a tie."""
        most = self.forks + len(forked)
        ranked: list[tuple[float, int, int]] = []
        for index, rollout in enumerate(tree):
            open_ = (
                (t, logprob)
                for t, logprob in least_likely(rollout.run, self.masked)
                if t or not index
            )
            ranked += [(logprob, index, rollout.start + t) for t, logprob in islice(open_, most)]
        forks = [(tree[index].place(position), position) for _, index, position in sorted(ranked)]
        fresh = [fork for fork in forks if fork not in forked]
        repeated = [fork for fork in forks if fork in forked]
        return [*fresh, *repeated][: self.forks]


def least_likely(run: Run, masked: Sequence[str]) -> list[tuple[int, float]]:
    """Return a run's own tokens up to the end of its first masked word, least likely first.

    Tokens are pairs of index and log-prob.
    """
    logprobs_T = np.concatenate(run.logprobs)[: unmasked(run, masked)]
    order = np.argsort(logprobs_T, kind="stable")
    return list(zip(order.tolist(), logprobs_T[order].tolist(), strict=True))


def unmasked(run: Run, masked: Sequence[str]) -> int:
    """Return the number of tokens of a run up to the end of its first masked word."""
    ends = [
        match.end()
        for word in masked
        if (match := re.search(re.escape(word), run.text, re.IGNORECASE))
    ]
    if not ends:
        return len(run)
    written = len(run) - (run.last.finish is Finish.STOP)  # the end token has no text
    return max(1, math.ceil(written * min(ends) / len(run.text)))
