"""The running branches with their pages, and the paused ones.

Pages are allocated as branches grow. Where kv_tokens leaves none, the branch that began last is
paused: its pages go to the others, and it waits with all its sampled tokens. It resumes once it
fits, after a prefill of its path: no token is drawn twice. The branch that began first is never
paused for another one.
"""

from collections.abc import Iterable, Sequence

import torch

from banyan.segment import IntTokens
from services.rollout.engines.port import Key, Request
from services.rollout.engines.torch_engine.kv.kv_budget import KvBudget
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch


class Running:
    """Running branches, and paused branches by key."""

    def __init__(self, kv_budget: KvBudget) -> None:
        self._kv_budget, self._begun = kv_budget, 0
        self.branches: list[RunningBranch] = []
        self.paused: dict[Key, RunningBranch] = {}

    @property
    def tables(self) -> list[list[int]]:
        """The page table of each running branch."""
        return [branch.pages for branch in self.branches]

    def find(self, key: Key) -> RunningBranch | None:
        """Return the running branch of a request, if there is one."""
        return next((branch for branch in self.branches if branch.request.key == key), None)

    def admit(self, branch: RunningBranch) -> RunningBranch:
        """Return the branch that is to begin: the paused one of the same key, if there is one."""
        if (paused := self.paused.pop(branch.request.key, None)) is not None:
            paused.written = branch.written
            return paused
        branch.since = self._begun
        self._begun += 1
        return branch

    def share(
        self,
        branches: Sequence[RunningBranch],
        prefix_P: IntTokens,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Keep a prefix, the first tokens of a slot, as the trunk of branches."""
        size = len(prefix_P)
        trunk = self._kv_budget.hold(prefix_P, keys[:, :, :size], values[:, :, :size])
        for branch in branches:
            branch.trunk = trunk
            trunk.pin(1)

    def copy(
        self,
        branches: Sequence[RunningBranch],
        prefix_P: IntTokens,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Copy a prefix, the first tokens of a slot, to each branch, and cache it if it fits."""
        size = len(prefix_P)
        keys, values = keys[:, :, :size], values[:, :, :size]
        for branch in branches:
            self._kv_budget.pages.allocate(branch.pages, size)
            self._kv_budget.pages.write(branch.pages, keys, values)
        self._kv_budget.keep(prefix_P, keys, values)

    def provide(self, pages: int, anyway: bool) -> bool:
        """Make pages free beside those of the next tokens; return False if they do not fit."""
        pool = self._kv_budget.pages
        missing = sum(pool.of(branch.own + 1) - len(branch.pages) for branch in self.branches)
        return self._kv_budget.provide(missing + pages, self.tables, anyway)

    def grow(self) -> None:
        """Allocate the (provided) page of each next token, and order branches by length."""
        self.branches.sort(key=lambda branch: branch.own)
        for branch in self.branches:
            self._kv_budget.pages.allocate(branch.pages, branch.own + 1)

    def pause(self) -> Request:
        """Pause the branch that began last, and return its remainder as a request."""
        branch = max(self.branches, key=lambda branch: branch.since)
        self.remove([branch])
        self.paused[branch.request.key] = branch
        return branch.rest

    def remove(self, ended: Iterable[RunningBranch]) -> None:
        """Remove branches and release their pages and trunks."""
        names = set()
        for branch in ended:
            names.add(id(branch))
            self._kv_budget.pages.release(branch.pages)
            if branch.trunk is not None:
                branch.trunk.pin(-1)
                branch.trunk = None
        self.branches = [branch for branch in self.branches if id(branch) not in names]

    def clear(self) -> list[RunningBranch]:
        """Remove and return all branches, the paused ones too."""
        branches = [*self.branches, *self.paused.values()]
        self.remove(self.branches)
        self.paused.clear()
        return branches
