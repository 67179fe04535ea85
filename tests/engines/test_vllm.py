"""What only the vllm engine has: updates that are proven, requests that it refuses by name, processes that may die."""

import os
import signal
import time

import numpy as np
import pytest

from banyan.errors import InvalidInput, NotReady, TemporaryError
from banyan.recipe_file import resolve
from banyan.segment import Finish
from banyan.signals import Wanted
from services.rollout.engines import canary, make, vllm_params
from services.rollout.engines.port import Policy
from tests.engines.conftest import HAS_VLLM
from tests.engines.rig import BASE, OTHER, TOLERANCE, ask, finish, gap, of, prompt, taught, with_canary

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_an_update_is_proven_by_its_canary(vllm, tmp_path):
    policy, path = vllm.policy(OTHER)
    vllm.engine.load(policy, with_canary(path, tmp_path, vllm.model(OTHER)))
    request = ask(0, prompt(40))
    assert gap(vllm.model(OTHER), finish(vllm.engine, [request])[0], request) < TOLERANCE


def test_an_update_that_does_not_take_effect_is_caught(vllm, tmp_path, monkeypatch):
    policy, path = vllm.policy(OTHER)
    proof = with_canary(path, tmp_path, vllm.model(OTHER))
    requests = [ask(b, prompt(40), b, max_new_tokens=200) for b in range(2)]
    for request in requests:
        vllm.engine.submit(request)
    while not vllm.engine.stats().running:
        vllm.engine.step()
    for _ in range(10):
        vllm.engine.step()
    vllm.engine.submit(ask("later", prompt(9)))

    async def nothing(manifest):
        pass

    with monkeypatch.context() as patch, pytest.raises(TemporaryError, match="differ by") as caught:
        patch.setattr(vllm.engine._core, "update", nothing)
        vllm.engine.load(policy, proof)
    assert caught.value.reason == "UNPROVEN"
    lost = {s.key: s for s in vllm.engine.step()}
    assert set(lost) == {0, 1} and all(s.finish is Finish.ABORTED and s.policy.step == BASE for s in lost.values())
    assert not vllm.engine.busy and vllm.engine.stats().waiting >= 1 and not vllm.engine.step()
    vllm.engine.load(policy, proof)
    ended = finish(vllm.engine)
    assert ended["later"].policy == policy
    assert gap(vllm.model(OTHER), ended["later"], ask("later", prompt(9))) < TOLERANCE


def test_old_and_new_policies_differ_by_more_than_a_canary_tolerates(vllm):
    tokens = prompt(32, 9)
    old, new = (of(taught(vllm.model(seed), tokens[:1], tokens[1:]), tokens[1:]) for seed in (BASE, OTHER))
    assert np.abs(old - new).mean() > 3 * canary.TOLERANCE
    found = vllm.engine.logprobs(tokens, 1, 1.0)
    canary.Canary(tokens, old).check(found, 1)
    with pytest.raises(TemporaryError, match=r"policy step 3 .* differ by"):
        canary.Canary(tokens, new).check(found, 3)


def test_weights_of_another_model_change_nothing(vllm, tmp_path):
    from services.chassis import weightfile

    state = {k: v for k, v in vllm.model(OTHER).state_dict().items() if "layers.1." not in k}
    manifest = weightfile.write(tmp_path, "policy-1-7", state, 1, 7, dtype="float32")
    requests = [ask(b, prompt(9), b) for b in range(2)]
    vllm.engine.submit(requests[0])
    with pytest.raises(InvalidInput, match=r"lacks .*another model"):
        vllm.engine.load(Policy(1, 7, manifest.digest), manifest.manifest_path)
    ended = finish(vllm.engine, requests[1:])
    assert max(gap(vllm.model(BASE), ended[r.key], r) for r in requests) < TOLERANCE


def test_likeliest_tokens_survive_requests_for_given_ones_in_the_same_step(vllm):
    """vLLM 0.32 answers all requests of a step with given tokens if one of them asks so (forced tokens at T ≠ 1 do)."""
    given = [ask(("given", b), prompt(40), b, {"forced": (7, 8, 9)}, temperature=0.7) for b in range(8)]
    likeliest = [ask(b, prompt(40), b, {"signals": Wanted(top=5)}, max_new_tokens=24) for b in range(8)]
    ended = finish(vllm.engine, [*likeliest, *given])
    for r in likeliest:
        table = taught(vllm.model(), r.prefix_P, ended[r.key].tokens_T)
        assert ended[r.key].signals.top_ids_T_K.tolist() == np.argsort(-table, axis=1)[:, :5].tolist()
    assert max(gap(vllm.model(), ended[r.key], r) for r in [*likeliest, *given]) < TOLERANCE


@pytest.mark.parametrize(
    ("wanted", "sampling", "says"),
    [
        (Wanted(semantic=5), {}, "semantic"),
        (Wanted(top=5), {"temperature": 0.7}, "temperature 0.7"),
        (Wanted(top=5), {"top_k": 3}, "top_k 3"),
    ],
)
def test_signals_that_vllm_hides_are_refused_by_name(wanted, sampling, says):
    with pytest.raises(InvalidInput, match=f"{says}.*resources.engine: torch"):
        vllm_params.check(ask(0, prompt(9), more={"signals": wanted}, **sampling))


def recipe(folder, **more):
    resources = {"engine": "vllm", "dtype": "float32", "threads": 1}
    return resolve({"name": "x", "model": str(folder), "task": {"name": "arithmetic"}, "resources": resources, **more})


def test_a_deterministic_recipe_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="deterministic"):
        make.maker(recipe(tmp_path, deterministic=True), 1)()


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed")
def test_without_vllm_the_remedy_is_named(model_at):
    with pytest.raises(NotReady, match="make vllm"):
        make.maker(recipe(model_at), 1)()


def test_an_engine_that_dies_is_an_error_and_not_a_wait(vllm, rigs):
    """Last: nothing can be had of this engine after it."""
    vllm.engine.submit(ask(0, prompt(9), max_new_tokens=400))
    vllm.engine.step()
    del rigs["vllm"]
    os.kill(vllm.engine._core._llm.engine_core.resources.engine_manager.processes[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    with pytest.raises(Exception, match=r"(?i)engine"):
        while time.monotonic() < deadline:
            vllm.engine.step()
    vllm.engine.close()
