"""Properties of the vllm engine alone: proven updates, refusals by name, dying processes."""

import os
import signal
import time

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput, NotReady, TemporaryError
from banyan.policy import PolicyVersion
from banyan.recipe_loader.load import resolve
from banyan.segment import Finish
from banyan.signals import Wanted
from services.rollout.engines import canary, factory
from services.rollout.engines.vllm_engine import params
from tests.engines.conftest import HAS_VLLM
from tests.engines.rig import (
    BASE,
    OTHER,
    TOLERANCE,
    ask,
    finish,
    gap,
    of,
    prompt,
    taught,
    with_canary,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_an_update_is_proven_by_its_canary(vllm, tmp_path):
    policy, path = vllm.policy(OTHER)
    vllm.engine.load(policy, with_canary(path, tmp_path, vllm.model(OTHER)))
    request = ask(0, prompt(40))
    assert gap(vllm.model(OTHER), finish(vllm.engine, [request])[0], request) < TOLERANCE


async def unreadable(_manifest):
    return [], ["model.norm.weight"]


@pytest.mark.parametrize("shown_by", ["weights", "canary"])
def test_an_update_that_does_not_take_effect_is_caught(vllm, tmp_path, monkeypatch, shown_by):
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

    says = {"weights": "computes with other values of .* tensors", "canary": "differ by"}[shown_by]
    with monkeypatch.context() as patch, pytest.raises(TemporaryError, match=says) as caught:
        patch.setattr(vllm.engine._core, "update", nothing)
        if shown_by == "canary":
            patch.setattr(vllm.engine._core, "read_back", unreadable)
        vllm.engine.load(policy, proof)
    assert caught.value.reason == "UNPROVEN"
    lost = {s.key: s for s in vllm.engine.step()}
    assert set(lost) <= {0, 1} and all(
        s.finish is Finish.ABORTED and s.policy.step == BASE for s in lost.values()
    )
    waiting = vllm.engine.stats().waiting  # with those that had no token yet
    assert not vllm.engine.busy and waiting == 3 - len(lost) and not vllm.engine.step()
    vllm.engine.load(policy, proof)
    ended = finish(vllm.engine)
    assert ended["later"].policy == policy
    assert gap(vllm.model(OTHER), ended["later"], ask("later", prompt(9))) < TOLERANCE


def test_the_smallest_step_is_seen_in_the_weights(vllm, tmp_path):
    """One unit in the last place of a twentieth of all weights: no log-prob shows it."""
    from services.chassis.weights import file

    draws = torch.Generator().manual_seed(5)
    for name in vllm.model(BASE).state_dict():
        state = {k: v.clone() for k, v in vllm.model(BASE).state_dict().items()}
        step = torch.nextafter(state[name], torch.tensor(9.0))
        some = torch.rand(step.shape, generator=draws) < 0.05
        state[name] = torch.where(some, step, state[name])
        if name == "lm_head.weight":
            state["model.embed_tokens.weight"] = state[name]
        manifest = file.write(tmp_path, "policy-1-5", state, 1, 5, dtype="float32")
        stored = manifest.aliases.get(name, name)
        wrong, unknown = vllm.engine._loop.run_until_complete(
            vllm.engine._core.read_back(manifest.manifest_path)
        )
        assert stored in wrong and len(wrong) <= 3 and not unknown, (
            name
        )  # fused matrices are read as one


def test_an_update_of_which_nothing_shows_is_counted(vllm, tmp_path, monkeypatch):
    policy, path = vllm.policy(OTHER)
    before = vllm.engine.stats().unproven
    vllm.engine.load(policy, path)
    assert vllm.engine.stats().unproven == before, "read back, so proven without a canary"
    monkeypatch.setattr(vllm.engine._core, "read_back", unreadable)
    vllm.engine.load(*vllm.policy(BASE))
    assert vllm.engine.stats().unproven == before + 1
    for count, seed in ((2, OTHER), (2, BASE)):  # a first canary has none to be told from
        (tmp_path / str(seed)).mkdir()
        policy, path = vllm.policy(seed)
        vllm.engine._updates._last_canary = (
            None if seed == OTHER else vllm.engine._updates._last_canary
        )
        vllm.engine.load(policy, with_canary(path, tmp_path / str(seed), vllm.model(seed)))
        assert vllm.engine.stats().unproven == before + count


def test_an_engine_that_says_the_same_bits_is_stuck(vllm):
    tokens = prompt(32, 9)
    old, new = (
        of(taught(vllm.model(seed), tokens[:1], tokens[1:]), tokens[1:]) for seed in (BASE, OTHER)
    )
    found = vllm.engine.logprobs(tokens, 1, 1.0)
    before, after = canary.Canary(tokens, old), canary.Canary(tokens, new)
    assert np.array_equal(found, vllm.engine.logprobs(tokens, 1, 1.0)), (
        "alone, vLLM says the same bits again"
    )
    assert after.stuck(found, before, found) and not before.stuck(found, before, found)
    assert not after.stuck(np.nextafter(found, 0), before, found) and not after.stuck(
        found, None, None
    )


def test_a_loader_that_writes_into_what_it_is_given_spoils_nothing(vllm):
    from services.chassis.weights import file
    from services.rollout.engines.vllm_engine import weight_transfer

    class Greedy:
        def named_parameters(self):
            return []

        def load_weights(self, weights):
            return {name for name, tensor in weights if tensor.zero_() is not None}

    backend = object.__new__(weight_transfer.backend())
    backend.model, (_, path) = Greedy(), vllm.policy(BASE)
    backend.receive_weights(weight_transfer.WeightUpdate(str(path)))
    read = file.read_tensors(file.read(path))
    assert all(
        torch.equal(tensor, vllm.model(BASE).state_dict()[name]) for name, tensor in read.items()
    )


def test_more_prompts_than_a_step_takes_wait_whole(vllm):
    """vLLM 0.32 prefills a prompt that exceeds the step in part. On a CPU that ends its worker."""
    requests = [ask(b, prompt(150, seed=b), b) for b in range(40)]
    ended = finish(vllm.engine, requests)
    assert max(gap(vllm.model(), ended[r.key], r) for r in requests[::5]) < TOLERANCE


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_truncated_segment_may_fill_the_context(vllm, temperature):
    request = ask(0, prompt(504), temperature=temperature, top_k=5)
    one = finish(vllm.engine, [request])[0]
    assert len(one.tokens_T) == 8 and gap(vllm.model(), one, request) < TOLERANCE
    path = np.concatenate((prompt(504), one.tokens_T))
    assert np.abs(vllm.engine.logprobs(path, 504, temperature) - one.logprobs_T).max() < TOLERANCE
    logprobs, signals = vllm.engine._loop.run_until_complete(
        vllm.engine._core.read(path.tolist(), 510, 5, "full")
    )
    table = taught(vllm.model(), path[:510], path[510:])
    assert (
        signals.top_ids_T_K.tolist() == np.argsort(-table, axis=1)[:, :5].tolist()
        and len(logprobs) == 2
    )


def test_old_and_new_policies_differ_by_more_than_a_canary_tolerates(vllm):
    tokens = prompt(32, 9)
    old, new = (
        of(taught(vllm.model(seed), tokens[:1], tokens[1:]), tokens[1:]) for seed in (BASE, OTHER)
    )
    assert np.abs(old - new).mean() > 3 * canary.TOLERANCE
    found = vllm.engine.logprobs(tokens, 1, 1.0)
    canary.Canary(tokens, old).check(found, 1)
    with pytest.raises(TemporaryError, match=r"policy step 3 .* differ by"):
        canary.Canary(tokens, new).check(found, 3)


def test_weights_of_another_model_change_nothing(vllm, tmp_path):
    from services.chassis.weights import file

    state = {k: v for k, v in vllm.model(OTHER).state_dict().items() if "layers.1." not in k}
    manifest = file.write(tmp_path, "policy-1-7", state, 1, 7, dtype="float32")
    requests = [ask(b, prompt(9), b) for b in range(2)]
    vllm.engine.submit(requests[0])
    with pytest.raises(InvalidInput, match=r"lacks .*another model"):
        vllm.engine.load(PolicyVersion(1, 7, manifest.digest), manifest.manifest_path)
    ended = finish(vllm.engine, requests[1:])
    assert max(gap(vllm.model(BASE), ended[r.key], r) for r in requests) < TOLERANCE


def test_likeliest_tokens_survive_requests_for_given_ones_in_the_same_step(vllm):
    """vLLM 0.32 returns given tokens to all requests of a step if one names them.

    Forced tokens at T ≠ 1 do.
    """
    given = [
        ask(("given", b), prompt(40), b, {"forced": (7, 8, 9)}, temperature=0.7) for b in range(8)
    ]
    likeliest = [
        ask(b, prompt(40), b, {"signals": Wanted(top=5)}, max_new_tokens=24) for b in range(8)
    ]
    ended = finish(vllm.engine, [*likeliest, *given])
    for r in likeliest:
        table = taught(vllm.model(), r.prefix_P, ended[r.key].tokens_T)
        assert (
            ended[r.key].signals.top_ids_T_K.tolist() == np.argsort(-table, axis=1)[:, :5].tolist()
        )
    assert max(gap(vllm.model(), ended[r.key], r) for r in [*likeliest, *given]) < TOLERANCE


@pytest.mark.parametrize(
    ("wanted", "sampling", "says"),
    [
        (Wanted(semantic=5), {}, "semantic"),
        (Wanted(entropy=True), {}, "entropy"),
        (Wanted(top=5), {"temperature": 0.7}, "temperature 0.7"),
        (Wanted(top=5), {"top_k": 3}, "top_k 3"),
    ],
)
def test_signals_that_vllm_hides_are_refused_by_name(wanted, sampling, says):
    with pytest.raises(InvalidInput, match=f"{says}.*resources.engine: torch"):
        params.check(ask(0, prompt(9), more={"signals": wanted}, **sampling))


def recipe(folder, **more):
    resources = {"engine": "vllm", "dtype": "float32", "threads": 1}
    given = {
        "name": "x",
        "model": str(folder),
        "task": {"name": "arithmetic"},
        "resources": resources,
    }
    return resolve(given | more)


class Curious:
    """A tree policy that reads entropies."""

    needs_entropy = True

    def plan(self, view, room, rng):
        raise AssertionError("nobody asks it")


def test_a_policy_that_needs_entropies_is_refused(tmp_path):
    generate = {"policy": f"{__name__}:Curious"}
    with pytest.raises(InvalidInput, match=r"Curious needs entropies.*vllm.*use torch"):
        recipe(tmp_path, generate=generate)
    assert (
        recipe(tmp_path, generate=generate, resources={"engine": "torch"}).generate.policy
        == generate["policy"]
    )


def test_a_deterministic_recipe_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="deterministic"):
        factory.maker(recipe(tmp_path, deterministic=True), 1)()


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed")
def test_without_vllm_the_remedy_is_named(model_at):
    with pytest.raises(NotReady, match="make vllm"):
        factory.maker(recipe(model_at), 1)()


def test_an_engine_that_dies_is_an_error_and_not_a_wait(vllm, rigs):
    """This test is the last: the engine is unusable after it."""
    vllm.engine.submit(ask(0, prompt(9), max_new_tokens=400))
    vllm.engine.step()
    del rigs["vllm"]
    os.kill(
        vllm.engine._core._llm.engine_core.resources.engine_manager.processes[0].pid, signal.SIGKILL
    )
    deadline = time.monotonic() + 30
    with pytest.raises(Exception, match=r"(?i)engine"):
        while time.monotonic() < deadline:
            vllm.engine.step()
    vllm.engine.close()
