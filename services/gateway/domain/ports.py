"""The gateway's ports: the store, the learners and the log. Test doubles subclass them."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

from google.protobuf.message import Message

from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import tree_pb2
from services.gateway.domain.state_machine import State


class Store(Protocol):
    """The treestore as the gateway uses it. Errors are BanyanErrors with the store's reason."""

    async def take_epoch(self, gateway_id: str) -> int:
        """Return the next gateway epoch. From then on all writes of older gateways are refused."""
        ...

    async def put_run(self, run: runs.Run, request_id: str, tokenizer: bytes = b"") -> runs.Run:
        """Store a run and its model's tokenizer, or return the run of the same `request_id`."""
        ...

    async def read_run(self, run_id: str, with_progress: bool = False) -> runs.ReadRunResponse:
        """Return a run by id or unique prefix. Raise NotFound.

        with_progress: with the counts of groups, evaluations and steps that decisions follow from
        """
        ...

    async def read_runs(self, live_only: bool) -> Sequence[runs.Run]:
        """Return runs, newest first."""
        ...

    async def move_run(self, run_id: str, old: State, new: State, cause: str) -> runs.Run:
        """Compare and set the state. Raise Refused if the run is in a state other than `old`."""
        ...

    async def read_rooms(
        self, run_id: str, block: int, known: int, wait_s: float
    ) -> runs.ReadRoomsResponse:
        """Return the growing training trees of blocks of `block` groups; with 0 only `seen`.

        Wait up to `wait_s` while `seen` is still `known`.
        """
        ...

    async def grant_rooms(self, run_id: str, grants: Sequence[runs.RoomGrant]) -> None:
        """Store the growth budgets of trees, all or none.

        Grants that are stored already are skipped.
        """
        ...

    async def put_allocations(
        self, run_id: str, allocations: Sequence[runs.GroupAllocation]
    ) -> Sequence[runs.GroupAllocation]:
        """Store a curriculum's decisions.

        Return the valid one of each ordinal: the one stored first.
        """
        ...

    async def read_allocations(self, run_id: str, first: int) -> Sequence[runs.GroupAllocation]:
        """Return a page of decisions from ordinal `first` on, in order; empty after the last."""
        ...

    async def read_outcomes(
        self, run_id: str, first: int, before: int, solved_chars: int = 0, right: float = 0.5
    ) -> runs.ReadOutcomesResponse:
        """Return outcomes of the groups of batches `first` to `before` - 1, which are committed.

        A page has at least one batch. With `solved_chars` > 0 it includes up to so many characters
        of an answer whose reward is at least `right`.
        """
        ...

    async def set_desired(self, run_id: str, processes: Mapping[str, int]) -> None:
        """Set the processes that a run wants, by service."""
        ...

    async def read_desired(self) -> Sequence[runs.DesiredProcess]:
        """Return the processes that all runs want now."""
        ...

    async def read_policies(
        self, run_id: str, after: int = 0, newest: int = 0
    ) -> Sequence[runs.StoredPolicy]:
        """Return policies that are not abandoned, oldest first."""
        ...

    async def read_members(self, run_id: str) -> Sequence[runs.Member]:
        """Return members by node id."""
        ...

    async def put_member(self, member: runs.Member) -> None:
        """Store a member."""
        ...

    async def put_token(self, token_hash: bytes, run_id: str, valid_s: int) -> None:
        """Store the hash of a join token."""
        ...

    async def read_token(self, token_hash: bytes) -> str:
        """Return the run that a token opens. Raise NotFound for an unknown or expired token."""
        ...

    async def last_training_tree(self, run_id: str) -> tree_pb2.TreeSpec | None:
        """Return the training tree that was opened last, or None."""
        ...

    async def troubles(self, run_id: str, label: str) -> Iterable[str]:
        """Return why trees of a label (empty: training trees) have no value, newest first.

        These are reasons of drops and of unscorable leaves.
        """
        ...


class Learners(Protocol):
    """The learners of runs."""

    async def checkpoint(self, run_id: str) -> str:
        """Wait until a whole checkpoint of the newest policy is on disk; return its folder.

        Raise TemporaryError.
        """
        ...


class Log(Protocol):
    """The bus as the gateway uses it."""

    async def publish(
        self,
        subject: str,
        message: Message,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        """Publish a message and wait for its ack; return its sequence number."""
        ...

    def triggers(self, run_id: str) -> AsyncIterator[None]:
        """Yield after every event of a run that may call for a decision."""
        ...
