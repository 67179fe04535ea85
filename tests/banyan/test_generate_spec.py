"""The JSON that says how a tree grows: a round trip, defaults in one place, and refusals."""

import json

import pytest

from banyan.errors import InvalidInput
from banyan.segment import Sampling
from banyan.wire.generate_spec import GenerateSpec

FULL = GenerateSpec(
    name="treepo",
    max_new_tokens=64,
    settings={"width": 4},
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    stop=("###", "\n\n"),
    logit_bias=((3, -1.5), (7, 2.0)),
)


@pytest.mark.parametrize("spec", [FULL, GenerateSpec(name="iid", max_new_tokens=8)])
def test_a_spec_survives_its_text(spec: GenerateSpec) -> None:
    assert GenerateSpec.from_json(spec.to_json()) == spec


def test_all_but_name_and_length_have_defaults() -> None:
    spec = GenerateSpec.from_json('{"name": "iid", "max_new_tokens": 8}')
    assert spec == GenerateSpec(
        name="iid",
        max_new_tokens=8,
        settings={},
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        stop=(),
        logit_bias=(),
    )
    assert "logit_bias" not in json.loads(spec.to_json())


def test_the_sampling_of_a_spec_has_the_trees_seed() -> None:
    assert FULL.sampling(11) == Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        max_new_tokens=64,
        stop=("###", "\n\n"),
        seed=11,
        bias=((3, -1.5), (7, 2.0)),
    )


def test_a_field_of_a_newer_gateway_is_ignored() -> None:
    assert GenerateSpec.from_json('{"name": "iid", "max_new_tokens": 8, "new": 1}').name == "iid"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"name": "iid"}',
        '{"max_new_tokens": 8}',
        '{"name": 1, "max_new_tokens": 8}',
        '{"name": "iid", "max_new_tokens": "many"}',
        '{"name": "iid", "max_new_tokens": 8, "settings": []}',
        '{"name": "iid", "max_new_tokens": 8, "stop": "###"}',
        '{"name": "iid", "max_new_tokens": 8, "logit_bias": [3]}',
    ],
)
def test_an_unusable_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="generate_json is unusable"):
        GenerateSpec.from_json(text)
