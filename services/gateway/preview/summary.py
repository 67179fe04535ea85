"""The summary of a simulated run: figures by name, and the parts of control that were left out."""

from banyan.plugins import traits
from banyan.recipe_loader import group_scorers
from services.gateway.preview.simulated_run import Group, SimulatedRun

Figures = dict[str, int | float | str]


def summary(run: SimulatedRun) -> Figures:
    """Return the figures of a run that has made all its steps."""
    groups = [group for _, group in run.trained]
    rollouts = [len(group.rollouts.rewards) for group in groups]
    mixed = sum(len(set(group.rollouts.rewards)) > 1 for group in groups)
    figures: Figures = {
        "steps": run.step,
        **({} if run.fixed else {"rows": len(run.rows)}),
        "groups_opened": run.opened,
        "groups_trained": len(groups),
        "groups_dropped": run.dropped,
        "groups_carried_over_per_step": run.carried / run.step,
        "oldest_in_steps": max(step - group.begun for step, group in run.trained),
        "ticks_per_step": run.now / run.step,
        "rollouts_per_group": sum(rollouts) / len(rollouts),
        "rollouts_least": min(rollouts),
        "rollouts_most": max(rollouts),
        "groups_with_right_and_wrong": mixed / len(groups),
        **_of_curriculum(run, groups),
    }
    figures["not_simulated"] = "; ".join(_left_out(run))
    return figures


def _of_curriculum(run: SimulatedRun, groups: list[Group]) -> Figures:
    """Return the figures that only some kinds of control have."""
    figures: Figures = {}
    allocations = [group.allocation for group in groups]
    if run.recipe.control.redundancy:
        figures["trees_given_up"] = sum(group.spare for group in groups)
    if any(allocation.max_new_tokens for allocation in allocations):
        shorter = sum(allocation.max_new_tokens is not None for allocation in allocations)
        figures["groups_with_shorter_paths"] = shorter
    if any(allocation.messages for allocation in allocations):
        examples = sum(bool(allocation.messages) for allocation in allocations)
        figures["groups_with_solved_examples"] = examples
    reasons = [allocation.why for allocation in allocations if allocation.why]
    if reasons:
        figures["last_reason"] = "".join(c if c.isprintable() else " " for c in reasons[-1])
    return figures


def _left_out(run: SimulatedRun) -> list[str]:
    recipe = run.recipe
    left_out = [] if run.fixed else [f"other rows than {len(run.rows)}"]
    left_out.append("rewards are drawn, each row with a chance that stays: nothing is learnt")
    name = f"generate.policy {recipe.generate.policy}"
    if traits.attribute(run.tree_policy, "width") is None and not recipe.control.rooms:
        left_out.append(f"{name} has no attribute width: one rollout a tree is drawn")
    if recipe.replay is not None:
        left_out.append("replay, which is the learner's: no batch holds older groups")
    if voting := group_scorers.scorers(recipe.filter):
        left_out.append(f"filter {voting[0]}: no votes are counted")
    if traits.of_policy(run.tree_policy).needs_scores:
        left_out.append(f"{name} goes on by scores: rollouts are its first ones")
    return left_out
