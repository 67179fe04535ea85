"""Actions under way, and who waits for them: equal requests of one caller share an answer."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from banyan.environments.endings import Ending
from banyan.environments.receipts import Receipt
from banyan.errors import TemporaryError
from banyan.reasons import Reason

Found = tuple[Receipt, str] | Ending
Key = tuple[bytes, int, bytes]
"""Tree, claim and action."""
_MOST = 256  # actions of a joined node under way
# Work for a joined node goes on for so long without an asker: after an answer that there is none
# yet, as the node asks again; after its connection broke.
_SILENT_S, _GONE_S = 15.0, 1.5
_MOST_KEPT = 16 << 20  # characters of answers


@dataclass(frozen=True, slots=True)
class Caller:
    """A joined node of a run; empty for nodes of our own."""

    run_id: str = ""
    node_id: str = ""

    @property
    def joined(self) -> bool:
        """True for a node that the gateway speaks for."""
        return bool(self.node_id)


OURS = Caller()


class _Work:
    """A task with the number of those who wait for it."""

    def __init__(self, task: "asyncio.Task[Found]") -> None:
        self.task, self.waiting = task, 0

    def end_if_left(self) -> None:
        """End the task if nobody waits any more."""
        if not self.waiting:
            self.task.cancel()


class Asked:
    """The actions that are being answered, and answers that were given.

    Work for a joined node ends when nobody of that node waits for it any more. What nodes of our
    own ask for goes on: they ask again.
    """

    def __init__(self) -> None:
        self._works: dict[tuple[Caller, Key], _Work] = {}
        self._of: Counter[Caller] = Counter()
        self._given: OrderedDict[tuple[bytes, bytes], tuple[Receipt, str]] = OrderedDict()
        self._kept = 0

    async def answer(
        self,
        caller: Caller,
        key: Key,
        make: Callable[[], Coroutine[None, None, Found]],
        limit_s: float,
    ) -> Found:
        """Return the answer that `make` makes, or one that is being made for the same caller.

        limit_s: time that a joined node waits; nodes of our own wait as long as it takes.

        Raises what it raises; TemporaryError at the limit, and with TOO_MANY if a joined node asks
        for too much.
        """
        if not caller.joined:
            work = self._works.get((caller, key)) or self._begin(caller, key, make)
            return await asyncio.shield(work.task)
        late = f"action {key[2].hex()[:12]} has no answer after {limit_s:g} s; ask again"
        try:
            async with asyncio.timeout(limit_s):
                await self._ended(caller, key)
        except TimeoutError:
            raise TemporaryError(late) from None
        work = self._works.get((caller, key)) or self._begin(caller, key, make)
        if not await _answered(work, limit_s):
            raise TemporaryError(late)
        return work.task.result()

    async def _ended(self, caller: Caller, key: Key) -> None:
        """Wait for the end of a work that is being ended, as its asker had left."""
        while (work := self._works.get((caller, key))) is not None and work.task.cancelling():
            await asyncio.wait({work.task})
            await asyncio.sleep(0)  # for the callback that forgets it

    def _begin(
        self, caller: Caller, key: Key, make: Callable[[], Coroutine[None, None, Found]]
    ) -> _Work:
        if caller.joined and self._of[caller] >= _MOST:
            raise TemporaryError(
                f"node {caller.node_id} has {_MOST} actions under way, as many as it may; wait for"
                " one to end",
                reason=Reason.TOO_MANY,
            )
        work = self._works[caller, key] = _Work(asyncio.create_task(make()))
        self._of[caller] += 1
        work.task.add_done_callback(lambda _: self._end(caller, key, work))
        return work

    def _end(self, caller: Caller, key: Key, work: _Work) -> None:
        if self._works.get((caller, key)) is work:
            del self._works[caller, key]
        self._of[caller] -= 1
        if not self._of[caller]:
            del self._of[caller]
        # Retrieve the exception, so that asyncio does not log it if nobody waits any more.
        _ = work.task.cancelled() or work.task.exception()

    def given(self, tree_id: bytes, action: bytes) -> tuple[Receipt, str] | None:
        """Return the answer that was given to an action; None if it was none, or long ago."""
        return self._given.get((tree_id, action))

    def keep(
        self, tree_id: bytes, action: bytes, found: tuple[Receipt, str]
    ) -> tuple[Receipt, str]:
        """Return the answer to an action that stands, the first: whoever asks again gets no other
        draw.
        """
        if (tree_id, action) in self._given:
            return self._given[tree_id, action]
        self._given[tree_id, action] = found
        self._kept += _size(found)
        while self._kept > _MOST_KEPT:
            _, lost = self._given.popitem(last=False)
            self._kept -= _size(lost)
        return found


async def _answered(work: _Work, limit_s: float) -> bool:
    """Wait for a joined node. Without anyone who waits the work is ended after a while."""
    work.waiting += 1
    grace_s = _GONE_S
    try:
        done, _ = await asyncio.wait({work.task}, timeout=limit_s)
        grace_s = _SILENT_S
    finally:
        work.waiting -= 1
        if not work.task.done():
            asyncio.get_running_loop().call_later(grace_s, work.end_if_left)
    return bool(done)


def _size(found: tuple[Receipt, str]) -> int:
    receipt, text = found
    return 1000 + len(text) + len(receipt.call)
