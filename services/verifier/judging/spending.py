"""Budgets: how much a run may still ask of an endpoint."""

import logging
from dataclasses import dataclass

from banyan.errors import Refused
from banyan.plugins.ask import Asker

log = logging.getLogger(__name__)


class Spent(Refused):
    """The budget of a run is used up."""


@dataclass(slots=True)
class Spending:
    """Requests and tokens of a run to one judge, counted in this process since it began.

    run_id: the run; "" for requests of nobody's
    """

    run_id: str
    requests: int = 0
    tokens: int = 0
    said: bool = False

    def begin(self, asker: Asker) -> None:
        """Count a request. Raise Spent if the run has no more of them."""
        for used, most, what in (
            (self.requests, asker.most_requests, "requests"),
            (self.tokens, asker.most_tokens, "tokens"),
        ):
            if 0 < most <= used:
                error = Spent(
                    f"the budget of {most} {what} of this run to {asker.name} is used up; raise "
                    f"most_{what}"
                )
                if not self.said:
                    log.warning("run %s: %s", self.run_id, error)
                self.said = True
                raise error
        self.requests += 1
