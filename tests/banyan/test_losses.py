"""Settings of losses: refused wherever a recipe is read, without torch."""

import subprocess
import sys
from typing import get_args

import pytest

from banyan import losses
from banyan.errors import InvalidInput
from banyan.recipe import Optimise
from banyan.recipe_loader.load import parse

MINIMAL = "name: x\nmodel: m/m\ntask: {name: arithmetic}\n"


def test_a_recipe_may_name_every_loss() -> None:
    assert set(get_args(Optimise.model_fields["loss"].annotation)) == set(losses.NAMES)
    for name in losses.NAMES:
        losses.check(name, {})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["loss_settings={clip: 0.2}"],
            "loss 'ppo-clip': it has no setting 'clip'; it has clip_high",
        ),
        (["loss_settings={clip_low: 2.0}"], r"clip_low 2.0 must lie in \[0, 1\]"),
        (["loss_settings={kl: {coef: -1.0}}"], "kl.coef -1.0 must be above 0"),
        (
            ["loss=otr", "loss_settings={kappa: x}"],
            "loss 'otr': kappa must be a finite number, got 'x'",
        ),
        (
            ["loss=gspo", "loss_settings={mode: token-mean}"],
            "loss 'gspo': it is the mean over paths",
        ),
        (["loss=dpo", "loss_settings={entropy: 0.1}"], "loss 'dpo': it has no setting 'entropy'"),
    ],
)
def test_a_recipe_with_other_settings_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(MINIMAL, [f"optimise.{override}" for override in overrides])


def test_no_torch_is_needed() -> None:
    text = (
        "import sys; from banyan.recipe_loader.load import parse; "
        f"parse({MINIMAL!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
