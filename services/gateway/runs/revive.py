"""The check that a resumed FAILED run can go on, and would not end the same way at once."""

from dataclasses import replace

from banyan.recipe import Recipe
from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.domain import state_machine
from services.gateway.runs.decide import RunFacts, decide


def uncured(recipe: Recipe, facts: RunFacts) -> str:
    """Return the cause for which the run would fail again at once; empty if it may go on. Pure.

    `facts` are of the run in the state that it would go back to. Processes that were given up are
    tried again.
    """
    facts = replace(facts, given_up=(), hopeless="")
    for _ in state_machine.WORKING:  # it passes each state at most once
        decision = decide(recipe, facts)
        if decision.unscorable:
            return f"evaluation {decision.unscorable.label}: no row could be scored"
        if decision.move is None:
            return ""
        if decision.move.to == S.RUN_STATE_FAILED:
            return decision.move.cause
        facts = replace(facts, state=decision.move.to)
    return ""
