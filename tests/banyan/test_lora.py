"""optimise.lora: its values, and the engines that it fits."""

import pytest

from banyan.errors import InvalidInput
from banyan.recipe_loader.load import parse

MINIMAL = "name: x\nmodel: m/m\ntask: {name: arithmetic}\n"
VLLM = "resources.engine=vllm"


def test_its_defaults_are_every_matrix() -> None:
    lora = parse(MINIMAL, ["optimise.lora={}"]).optimise.lora
    assert lora is not None and (lora.rank, lora.alpha, lora.dropout, lora.targets) == (
        16,
        32.0,
        0.0,
        "all-linear",
    )
    assert parse(MINIMAL).optimise.lora is None
    lora = parse(MINIMAL, ["optimise.lora={targets: [q_proj, v_proj]}"]).optimise.lora
    assert lora is not None and lora.targets == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimise.lora={rank: 0}"], "lora.rank.*at least 1"),
        (
            ["optimise.lora={dropout: 0.1}"],
            "dropout 0.1 makes each pass random.*set 0",
        ),
        (["optimise.lora={targets: []}"], "targets"),
        (["optimise.lora={r: 8}"], "unknown key"),
        (
            [VLLM, "resources.engine_settings={lora_rank: 8}"],
            "lora_rank 8 starts vLLM for adapters.*leave lora_rank out",
        ),
        (
            [VLLM, "resources.engine_settings={lora_rank: 8}", "optimise.lora={rank: 16}"],
            "optimise.lora.rank 16 is above resources.engine_settings.lora_rank 8",
        ),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(MINIMAL, overrides)


def test_vllm_takes_adapters_of_its_rank_or_merged_weights() -> None:
    parse(MINIMAL, [VLLM, "resources.engine_settings={lora_rank: 16}", "optimise.lora={rank: 16}"])
    parse(MINIMAL, [VLLM, "optimise.lora={rank: 16}"])
