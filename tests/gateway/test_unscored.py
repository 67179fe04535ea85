"""A run in which nothing can be learnt fails with the reasons of scorers and store."""

import pytest

from tests.gateway.driven_runs import driver_of, until_over


async def test_a_run_whose_groups_are_all_dropped_fails_with_the_reason(
    store, bus, recipe_of
) -> None:
    recipe = recipe_of(task={"holdout": 0.0})
    driver = await driver_of(store, bus, recipe)
    store.publish(0)
    store.reasons = ["tree dropped: NO_PROGRESS"]
    for _ in range(40):
        if await driver.reconcile():
            break
        store.finish("dropped")
    assert store.moves[-1] == (
        "FAILED",
        "40 groups in a row were dropped and none closed: tree dropped: NO_PROGRESS",
    )


@pytest.mark.parametrize("from_batch", [0, 5])
async def test_a_run_whose_leaves_no_scorer_scores_fails_with_its_reason(
    store, bus, recipe_of, from_batch: int
) -> None:
    """After ten such batches in a row, however many came before."""
    recipe = recipe_of(task={"holdout": 0.0}, budget={"steps": 40}, control={"groups_per_batch": 2})
    driver = await driver_of(store, bus, recipe)
    store.reasons = ["gs:raises: it raised"]
    store.publish(0)
    for _ in range(80):
        if await driver.reconcile():
            break
        if store.batches == from_batch:
            # The number of scored leaves stays as it is.
            store.scores[""] = (await store.read_progress(driver.run_id)).samples.scored
        store.finish()
        store.train(2)
    assert store.moves[-1] == (
        "FAILED",
        "20 groups in a row have no scored leaf: gs:raises: it raised",
    )
    assert store.batches == from_batch + 10


async def test_an_evaluation_without_any_value_fails_with_the_scorers_reason(
    store, bus, recipe_of
) -> None:
    driver = await driver_of(store, bus, recipe_of())
    store.publish(0)
    store.scores = {"before-greedy": 0}
    store.reasons = ["number: EXCEPTION"]
    for _ in range(5):
        await driver.reconcile()
        store.finish()
    assert store.moves[-1] == (
        "FAILED",
        "evaluation before-greedy: no row could be scored: number: EXCEPTION",
    )


async def test_a_short_run_without_a_score_is_no_success(store, bus, recipe_of) -> None:
    """It ends before so many groups in a row show that there is no hope."""
    recipe = recipe_of(task={"holdout": 0.0}, budget={"steps": 3}, control={"groups_per_batch": 2})
    driver = await driver_of(store, bus, recipe)
    store.scores[""], store.reasons = 0, ["gs:raises: it raised"]
    await until_over(store, bus, recipe, driver)
    says = "no sample of its 3 batches has a score, so nothing was learnt: gs:raises: it raised"
    assert store.moves[-1] == ("FAILED", says)
    assert not store.saved


async def test_a_run_whose_trees_have_no_leaves_says_so(store, bus, recipe_of) -> None:
    """A tree policy may drop all that it marks: no scorer is at fault."""
    recipe = recipe_of(task={"holdout": 0.0}, budget={"steps": 3}, control={"groups_per_batch": 2})
    driver = await driver_of(store, bus, recipe)
    store.scores |= {"": 0, "leaves": 0}
    await until_over(store, bus, recipe, driver)
    cause = (
        "no tree of its 3 batches has a leaf, so nothing was learnt;"
        " the tree policy made none, or dropped them"
    )
    assert store.moves[-1] == ("FAILED", cause)


UNTAUGHT = {
    "equal": (
        {"zero_variance_share": 1.0, "reward": 0.5},
        "within every group all rewards were equal (mean 0.5 at the last step), and an advantage"
        " compares rewards of a group; take prompts that are neither too easy nor too hard, more"
        " trees a group, or a scorer that tells answers apart",
    ),
    "not finite": (
        {"not_finite": 1.0},
        "their losses or gradients were not finite;"
        " lower optimise.learning_rate, or look at the rewards",
    ),
    "alone": (
        {"zero_variance_share": 0.0},
        "no group had two scored leaves with different credit; give groups more leaves"
        " (generate.trees, or the width in generate.settings) where they have one;"
        " `banyan runs show` has the metrics of each step",
    ),
}


@pytest.mark.parametrize("name", UNTAUGHT)
async def test_a_run_in_which_nothing_was_ever_applied_is_no_success(
    store, bus, recipe_of, name: str
) -> None:
    recipe = recipe_of(task={"holdout": 0.0}, budget={"steps": 3}, control={"groups_per_batch": 2})
    driver = await driver_of(store, bus, recipe)
    metrics, why = UNTAUGHT[name]
    store.metrics = {"applied": 0.0, **metrics}
    await until_over(store, bus, recipe, driver)
    assert store.moves[-1] == ("FAILED", f"none of the 3 steps changed the weights: {why}")
    assert not store.saved


@pytest.mark.parametrize("applied_at", [1, 2, 3])
async def test_one_step_that_was_applied_is_enough(store, bus, recipe_of, applied_at: int) -> None:
    recipe = recipe_of(task={"holdout": 0.0}, budget={"steps": 3}, control={"groups_per_batch": 2})
    driver = await driver_of(store, bus, recipe)
    train = store.train

    def stepping(groups: int) -> bool:
        store.metrics = {"applied": float(store.batches + 1 == applied_at)}
        return train(groups)

    store.train = stepping
    await until_over(store, bus, recipe, driver)
    assert store.moves[-1][0] == "SUCCEEDED"
