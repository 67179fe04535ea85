"""Network and secrets of scorers: asked for in the recipe, allowed by the operator, said early."""

import json
from typing import Any

import pytest

from banyan.cli.train import scorer_checks
from banyan.errors import InvalidInput
from banyan.recipe_loader.load import parse
from services.verifier.store import specs_of
from tests.methods.filter.test_judge import GOOD

OWN: dict[str, Any] = {"name": "no_such_module:f"}
JUDGE = {"name": "judge", "settings": GOOD, "network": True}


def recipe(*filters: dict[str, Any]) -> Any:
    data = {"name": "x", "model": "tiny", "task": {"name": "arithmetic"}, "filter": list(filters)}
    return parse(json.dumps(data))


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ({"name": "number", "network": True}, "number uses no network and no secrets"),
        ({"name": "regex", "secrets": ["KEY"]}, "regex uses no network and no secrets"),
        ({**JUDGE, "network": False}, "judge asks the address base_url: set network: true"),
        ({**JUDGE, "secrets": ["A", "B"]}, "judge takes one secret"),
        ({**OWN, "secrets": ["lower"]}, "filter.0.secrets.0"),
        ({**JUDGE, "settings": {"model": "m"}}, "base_url"),
    ],
)
def test_recipes_that_ask_for_what_cannot_be_are_refused(scorer: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        recipe(scorer)


def test_the_verifier_reads_what_a_recipe_asks_for() -> None:
    made = recipe({**JUDGE, "secrets": ["KEY"]}, OWN)
    specs = specs_of(made.model_dump_json())
    assert (specs["judge"].network, specs["judge"].secrets) == (True, ("KEY",))
    assert (specs[OWN["name"]].network, specs[OWN["name"]].secrets) == (False, ())
    assert specs["judge"].key != specs_of(recipe(JUDGE).model_dump_json())["judge"].key


def test_a_run_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="operator can set BANYAN_SANDBOX_NETWORK=1"):
        scorer_checks.check(recipe(JUDGE), [])
    monkeypatch.setenv("BANYAN_SANDBOX_NETWORK", "1")
    scorer_checks.check(recipe(JUDGE), [])
    keyed = recipe({**JUDGE, "secrets": ["TEST_KEY"]})
    with pytest.raises(InvalidInput, match="operator can set BANYAN_SCORER_SECRETS=TEST_KEY"):
        scorer_checks.check(keyed, [])
    monkeypatch.setenv("BANYAN_SCORER_SECRETS", "OTHER, TEST_KEY")
    with pytest.raises(InvalidInput, match="TEST_KEY: set that variable"):
        scorer_checks.check(keyed, [])
    monkeypatch.setenv("TEST_KEY", "open")
    scorer_checks.check(keyed, [])
