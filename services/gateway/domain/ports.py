"""What the gateway needs of the outside: the store and the log. Tests hand in fakes that subclass these."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

from google.protobuf.message import Message

from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import tree_pb2
from services.gateway.domain.state_machine import State


class Store(Protocol):
    """The treestore, as far as the gateway uses it. Errors are BanyanErrors with the store's reason."""

    async def take_epoch(self, gateway_id: str) -> int:
        """The next gateway epoch; from now on all writes of older gateways are refused."""
        ...

    async def put_run(self, run: runs.Run, request_id: str, tokenizer: bytes = b"") -> runs.Run:
        """Stores a run and its model's tokenizer; the same request_id answers with the run that is there."""
        ...

    async def read_run(self, run_id: str) -> runs.ReadRunResponse:
        """A run by id or unique prefix. Raises NotFound."""
        ...

    async def read_runs(self, live_only: bool) -> Sequence[runs.Run]:
        """Runs, newest first."""
        ...

    async def move_run(self, run_id: str, old: State, new: State, cause: str) -> runs.Run:
        """Compare and set. Raises Refused where the run is in another state than `old`."""
        ...

    async def read_progress(self, run_id: str) -> runs.ReadProgressResponse:
        """What the curriculum decides on."""
        ...

    async def read_rooms(
        self, run_id: str, block: int, known: int, wait_s: float
    ) -> runs.ReadRoomsResponse:
        """Training trees of blocks of so many groups that grow (0: only `seen`); waits while `seen` is still `known`, at
        most so long."""
        ...

    async def grant_rooms(self, run_id: str, grants: Sequence[runs.RoomGrant]) -> None:
        """Gives trees room, all of it or none; what was given before is passed over."""
        ...

    async def put_allocations(
        self, run_id: str, allocations: Sequence[runs.GroupAllocation]
    ) -> Sequence[runs.GroupAllocation]:
        """Stores what a curriculum decided; for each ordinal what holds, which is what was stored first."""
        ...

    async def read_allocations(self, run_id: str, first: int) -> Sequence[runs.GroupAllocation]:
        """What was decided from an ordinal on, in order; some of it, and nothing only where there is no more."""
        ...

    async def read_outcomes(
        self, run_id: str, first: int, before: int, solved_chars: int = 0, right: float = 0.5
    ) -> runs.ReadOutcomesResponse:
        """What became of the groups of committed batches, from batch `first` on; some of them, at least one batch. With so
        many characters of an answer of a reward of at least `right`."""
        ...

    async def set_desired(self, run_id: str, processes: Mapping[str, int]) -> None:
        """The processes that a run wants, by service."""
        ...

    async def read_desired(self) -> Sequence[runs.DesiredProcess]:
        """The processes that all runs want now."""
        ...

    async def read_policies(
        self, run_id: str, after: int = 0, newest: int = 0
    ) -> Sequence[runs.StoredPolicy]:
        """Policies that are not abandoned, oldest first."""
        ...

    async def read_members(self, run_id: str) -> Sequence[runs.Member]:
        """Members by node id."""
        ...

    async def put_member(self, member: runs.Member) -> None:
        """Notes a member."""
        ...

    async def put_token(self, token_hash: bytes, run_id: str, valid_s: int) -> None:
        """Stores a join token's hash."""
        ...

    async def read_token(self, token_hash: bytes) -> str:
        """The run that a token opens. Raises NotFound where there is none, or it has expired."""
        ...

    async def last_training_tree(self, run_id: str) -> tree_pb2.TreeSpec | None:
        """What was opened last for training; None if nothing was."""
        ...

    async def troubles(self, run_id: str, label: str) -> Iterable[str]:
        """Why trees of a label (empty: training) have no value: reasons of drops and of unscorable leaves, newest first."""
        ...


class Learners(Protocol):
    """The learners of runs."""

    async def checkpoint(self, run_id: str) -> str:
        """Returns when a whole checkpoint of the newest policy is on disk; its folder. Raises TemporaryError."""
        ...


class Log(Protocol):
    """The bus, as far as the gateway uses it."""

    async def publish(
        self,
        subject: str,
        message: Message,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        """Publishes and waits for the ack."""
        ...

    def triggers(self, run_id: str) -> AsyncIterator[None]:
        """Yields whenever something happened in a run that may call for a decision."""
        ...
