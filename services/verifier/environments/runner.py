"""Runs that environments ask for: of code in sessions, of steps in hosts."""

from banyan.environments.hosting import HostedResult, HostedTask
from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.programs.session import SessionResult, Task
from banyan.reasons import Reason
from services.verifier.environments.ports import Begin, Hosts, Sessions


class Runner:
    """Does what an environment yields; None in place of a port refuses that kind."""

    def __init__(self, sessions: Sessions | None, hosts: Hosts | None) -> None:
        self._sessions, self._hosts = sessions, hosts

    async def do(
        self, name: str, task: Task | HostedTask, begin: Begin | None = None
    ) -> SessionResult | HostedResult:
        """Do a run for the environment of this name.

        begin: begins an effect outside, which only a hosted step has

        Raises TemporaryError where it failed by no fault of its code.
        """
        if isinstance(task, HostedTask):
            if self._hosts is None:
                raise Refused(f"environment {name} needs hosts; there are none")
            return await self._hosts.do(task, begin)
        if self._sessions is None:
            raise Refused(f"environment {name} needs sessions; there are none")
        try:
            result = await self._sessions.do(task)
        except InvalidInput as error:  # this machine has no sound ones
            raise Refused(str(error)) from None
        if not result.outcome.is_programs:
            raise TemporaryError(
                f"a session of environment {name} ended {result.outcome}", reason=Reason.CHILD_DIED
            )
        return result
