"""Qwen3 thinks: its template drops earlier thoughts, so paths are bridged and never written anew.

What cannot be bridged ends.
"""

import pytest

from banyan.environments.renderers import VERSIONS, RendererSpec
from banyan.errors import InvalidInput
from services.chassis.renderers.make import make
from tests.chassis.renderers.families import OWN, PROMPT, SMALL, Family

THOUGHT = "<think>\nHm, {}.\n</think>\n\n<calc>{} * 7</calc>"
qwen3 = pytest.mark.parametrize(
    "family", [SMALL[1], pytest.param(OWN[1], marks=pytest.mark.slow)], ids=str
)


@qwen3
def test_thoughts_stay_in_the_context_though_the_template_drops_them(family: Family) -> None:
    messages, path = list(PROMPT), family.renderer.render(PROMPT)
    for turn in range(20):
        action = family.ids(THOUGHT.format(turn, turn))
        new = family.renderer.bridge(path, action, str(7 * turn))
        assert new is not None
        path = [*path, *action, *new]
        messages += [
            {"role": "assistant", "content": THOUGHT.format(turn, turn)},
            {"role": "tool", "content": str(7 * turn)},
        ]
    thought = family.ids("<think>")
    assert path.count(thought[0]) == 20
    as_user = [*messages[:-1], {"role": "user", "content": "133"}]
    assert family.whole(as_user).count(thought[0]) == 0, "the template writes the path anew"
    assert family.whole(messages) == path, "within one question it does not"


@qwen3
def test_a_thought_left_open_is_closed(family: Family) -> None:
    path, action = family.renderer.render(PROMPT), family.ids("<think>\n<calc>6*7</calc>")
    new = family.renderer.bridge(path, action, "42")
    assert new is not None
    assert new[:2] == family.ids("</think><|im_end|>")


@qwen3
@pytest.mark.parametrize(
    "action", ["<think>\n<|im_end|><calc>1</calc>", "I end.<|im_end|> No!<calc>1</calc>"]
)
def test_an_end_of_turn_within_an_action_cannot_be_bridged(family: Family, action: str) -> None:
    path = family.renderer.render(PROMPT)
    assert family.renderer.bridge(path, family.ids(action), "42") is None


def test_a_message_of_an_unknown_role_is_refused_and_not_left_out() -> None:
    with pytest.raises(InvalidInput, match="a message of role 'developer'; renderer"):
        SMALL[1].renderer.render([{"role": "developer", "content": "Be short."}, *PROMPT])


def test_thinking_can_be_switched_off_by_a_setting() -> None:
    family = SMALL[1]
    spec = RendererSpec("qwen3", VERSIONS["qwen3"], {"enable_thinking": False})
    plain = make(spec, family.tokenizer, frozenset({family.tokenizer.eos_token_id}))
    none = family.ids("<think>\n\n</think>\n\n")
    prompt = plain.render(PROMPT)
    assert prompt == [*family.renderer.render(PROMPT), *none]
    bridged = plain.bridge(prompt, family.ids("<calc>1</calc>"), "</think> <think>")
    assert bridged is not None and bridged[-len(none) :] == none
    assert family.special(bridged).count(family.ids("<think>")[0]) == 1
