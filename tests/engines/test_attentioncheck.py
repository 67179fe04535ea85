"""The comparison with eager attention at load.

Tests cover its refusals, its traces, and the number of times that it is made.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, Phi3Config, Phi3ForCausalLM, PreTrainedModel

from banyan.errors import InvalidInput, NotReady
from banyan.recipe_loader.load import resolve
from banyan.segment import Sampling
from services.chassis.model_checks import eager_pass, sharpened
from services.chassis.model_checks.rope_reach import reach
from services.learner.attention import mask as treemask
from services.learner.attention import node_attention, tree_attention
from services.learner.model import attention_check as of_learner
from services.learner.model import load as models
from services.learner.model import logprobs
from services.learner.packing import packing
from services.learner.training.trainer_thread import TorchThread
from services.rollout.engines.factory import maker
from services.rollout.engines.port import Request
from services.rollout.engines.torch_engine import (
    attention,
    cascade_attention,
    forward,
    loading,
    paged_attention,
)
from services.rollout.engines.torch_engine import attention_check as of_engine
from services.rollout.engines.torch_engine.kv.kv_budget import KvBudget, Limits
from services.rollout.engines.torch_engine.scheduling.limits import check
from tests.engines.families import made
from tests.learner.rig import recipe
from tests.rollout.conftest import save_weights, tiny_llama
from tests.rollout.engines.test_loading import save_tokenizer

Patch = pytest.MonkeyPatch


@pytest.fixture
def without(monkeypatch: Patch) -> Callable[[str], None]:
    """Make both attention functions swallow a keyword, as if it were unknown."""

    def swallow(name: str) -> None:
        for key, inner in (
            (attention.NAME, attention.attend),
            (tree_attention.NAME, tree_attention.tree_attention),
        ):

            def deaf(*given: Any, inner: Any = inner, **more: Any) -> Any:
                return inner(*given, **{k: v for k, v in more.items() if k != name})

            monkeypatch.setitem(AttentionInterface._global_mapping, key, deaf)

    return swallow


def engine_of(case: str, dtype: torch.dtype = torch.float32) -> Any:
    return of_engine.checked(loading.with_attention(made(case, dtype)))


def learner_of(case: str) -> None:
    of_learner.check(models.prepare(made(case)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("case", "name"), [("gemma2", "softcap"), ("gpt-oss", "s_aux"), ("granite", "scaling")]
)
def test_an_engine_that_swallows_a_keyword_is_refused(
    without: Any, case: str, name: str, dtype: torch.dtype
) -> None:
    engine_of(case, dtype)
    without(name)
    said = (
        r"the torch engine computes another model .*: prefill differs by \d\S* nats a token"
        r" \(at most 0\.001 in float32"
    )
    with pytest.raises(NotReady, match=said):
        engine_of(case, dtype)


@pytest.mark.parametrize("case", ["llama", "gemma2", "gpt-oss", "mistral-long"])
def test_an_engine_with_fixed_shapes_is_compared_as_it_decodes(
    monkeypatch: Patch, case: str
) -> None:
    model, shapes = loading.with_attention(made(case)), []
    decode = forward.Forward.decode

    def noted(self: Any, slots: Any, tokens_B: Any, *given: Any, **more: Any) -> Any:
        shapes.append(len(tokens_B))
        return decode(self, slots, tokens_B, *given, **more)

    monkeypatch.setattr(forward.Forward, "decode", noted)
    of_engine.checked(model, deterministic=True)
    assert set(shapes) == {8}


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("gemma2", "softcap"),
        ("gpt-oss", "s_aux"),
        ("granite", "scaling"),
        ("mistral-long", "sliding_window"),
    ],
)
def test_a_learner_that_swallows_a_keyword_is_refused(without: Any, case: str, name: str) -> None:
    learner_of(case)
    without(name)
    with pytest.raises(
        NotReady, match=r"the learner computes another model .*: a packed row differs by \d\S* nats"
    ):
        learner_of(case)


def test_an_engine_that_forgets_a_window_of_thousands_is_refused(monkeypatch: Patch) -> None:
    monkeypatch.setattr(forward.Forward, "window", 4096)
    with pytest.raises(
        NotReady, match="model type 'mistral': the torch engine computes another model"
    ):
        engine_of("mistral-long")


def test_an_engine_that_leaves_out_a_trunk_is_refused(monkeypatch: Patch) -> None:
    whole = cascade_attention.levels
    monkeypatch.setattr(
        cascade_attention, "levels", lambda trunks, device: whole(trunks, device)[:0]
    )
    with pytest.raises(NotReady, match="a trunk that branches share differs"):
        engine_of("llama")


@pytest.mark.parametrize("case", ["llama", "gemma2", "deepseek3", "mpt"])
@pytest.mark.parametrize("fault", ["another page", "no second page"])
def test_an_engine_that_takes_wrong_pages_is_refused(
    monkeypatch: Patch, case: str, fault: str
) -> None:
    inner = paged_attention._Bucket.__init__

    def wrong(self: Any, pages: Any, rows: slice, tables: Any, most: int) -> None:
        turned = {
            "another page": lambda t: [*t[1:], t[0]],
            "no second page": lambda t: [t[0], 0, *t[2:]],
        }
        inner(
            self,
            pages,
            rows,
            [turned[fault](list(table)) if len(table) > 1 else table for table in tables],
            most,
        )

    monkeypatch.setattr(paged_attention._Bucket, "__init__", wrong)
    with pytest.raises(NotReady, match="the torch engine computes another model"):
        engine_of(case)


def test_an_engine_that_mixes_up_lengths_is_refused(monkeypatch: Patch) -> None:
    own = paged_attention.PagedCache.own

    def short(self: Any, layer: int, mask: Any) -> Any:
        found = list(own(self, layer, mask))
        for one in found:  # the first bucket is right, the others see as little
            width = found[0].keys.shape[2]
            yield paged_attention.OwnKv(
                one.rows, one.keys[:, :, :width], one.values[:, :, :width], one.mask[..., :width]
            )

    monkeypatch.setattr(paged_attention.PagedCache, "own", short)
    with pytest.raises(NotReady, match="paths of different lengths differs"):
        engine_of("llama")


def test_an_engine_whose_decode_is_off_is_refused(monkeypatch: Patch) -> None:
    decode = forward.Forward.decode

    def late(*given: Any, **more: Any) -> torch.Tensor:
        found: torch.Tensor = decode(*given, **more) * 1.1
        return found

    monkeypatch.setattr(forward.Forward, "decode", late)
    with pytest.raises(NotReady, match="one-token decode differs"):
        engine_of("llama")


def test_a_fault_of_a_late_layer_in_bfloat16_is_seen_if_it_is_gross() -> None:
    model = loading.with_attention(made("llama", torch.bfloat16))
    late = model.model.layers[1].self_attn

    def scaled(*given: Any, **more: Any) -> Any:
        out, weights = type(late).forward(late, *given, **more)
        return (out * -5 if model.config._attn_implementation == attention.NAME else out), weights

    late.forward = scaled
    with pytest.raises(NotReady, match=r"differs by \d\S* nats a token \(at most 1\.0 in bfloat16"):
        of_engine.checked(model)


def test_a_learner_whose_nodes_are_off_is_refused(monkeypatch: Patch) -> None:
    inner = node_attention.attend
    monkeypatch.setattr(node_attention, "attend", lambda *given: inner(*given) * 1.1)
    with pytest.raises(NotReady, match="a packed row, node by node differs"):
        learner_of("llama")


def test_a_learner_that_forgets_what_the_output_layer_does_is_refused(monkeypatch: Patch) -> None:
    monkeypatch.setattr(models, "logit_factor", lambda config: 1.0)
    with pytest.raises(NotReady, match="model type 'cohere': the learner computes another model"):
        learner_of("cohere")
    monkeypatch.setattr(
        models, "token_logprobs", lambda *given: logprobs.token_logprobs(*given[:3])
    )
    with pytest.raises(NotReady, match="model type 'gemma2': the learner computes another model"):
        learner_of("gemma2")


def test_log_probs_that_are_no_numbers_prove_nothing() -> None:
    model = made("llama")
    model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(NotReady, match="differs by nan nats"):
        of_learner.check(models.prepare(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["gemma2", "mistral-long", "llama"])
def test_nothing_is_left_behind(case: str, dtype: torch.dtype) -> None:
    model = loading.with_attention(made(case, dtype))
    before = shown(model)
    found = of_engine.checked(model)
    assert shown(model) == before
    assert (found.kv.layers, found.kv.dtype, found.states) == (2, dtype, None)
    assert found.by_level == (case == "llama")
    assert found.window == {"gemma2": 4096, "mistral-long": 4096, "llama": 0}[case]


def shown(model: PreTrainedModel) -> Any:
    tensors = {
        name: (t.data_ptr(), t.dtype)
        for name, t in (*model.named_parameters(), *model.named_buffers())
    }
    windows = [getattr(m, "sliding_window", None) for m in model.modules()]
    return (
        tensors,
        windows,
        model.config.sliding_window if hasattr(model.config, "sliding_window") else None,
        (model.config._attn_implementation),
    )


@pytest.mark.parametrize(("one", "short"), [(100, (4, 6)), (3, (3, 6)), (5000, (6, 4))])
def test_different_windows_stay_different(one: int, short: tuple[int, int]) -> None:
    model = made("gemma2")
    layer = model.model.layers[0].self_attn
    layer.sliding_window = one
    with eager_pass.short_windows(model):
        assert (layer.sliding_window, model.config.sliding_window) == short
    assert (layer.sliding_window, model.config.sliding_window) == (one, 4096)


def test_layers_are_cut_behind_the_first_of_the_last_kind() -> None:
    assert sharpened.first_of_each(made("llama"), made("llama").model.layers) == 1
    assert sharpened.first_of_each(made("gemma2"), made("gemma2").model.layers) == 2
    assert sharpened.first_of_each(made("smollm3"), made("smollm3").model.layers) == 2
    assert sharpened.first_of_each(made("deepseek3"), made("deepseek3").model.layers) == 2, (
        "the second has experts"
    )


# -- rotations that change with the path's length --

SWITCHING = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [9.0] * 4,
    "rope_theta": 1e4,
}


def phi3() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.4}
    long = {
        "max_position_embeddings": 256,
        "original_max_position_embeddings": 32,
        "rope_parameters": dict(SWITCHING),
    }
    return Phi3ForCausalLM(Phi3Config(**sizes, **heads, **long)).eval()


def test_rotations_reach_as_far_as_they_are_the_same() -> None:
    model = phi3()
    assert reach(model.config) == loading.context(model) == 32
    assert reach(made("llama").config) == 0 and loading.context(made("llama")) == 256
    short, long = (torch.arange(n)[None] % 64 for n in (32, 33))
    with torch.no_grad():
        first, after = (model(input_ids=ids).logits[0, 8] for ids in (short, long))
    assert float((first - after).abs().max()) > 1e-2, "a longer path changes tokens before its end"


def test_of_several_rotations_the_shortest_reach_counts() -> None:
    """Layers of different types may rotate in different ways."""

    def config(**ropes: object) -> Any:
        text = SimpleNamespace(rope_parameters=ropes, max_position_embeddings=256)
        return SimpleNamespace(get_text_config=lambda: text)

    plain, long = {"rope_type": "default"}, {**SWITCHING, "original_max_position_embeddings": 32}
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    assert reach(config(full_attention=dynamic, sliding_attention=long)) == 32
    assert reach(config(full_attention=plain, sliding_attention=dynamic)) == 256
    assert reach(config(full_attention=plain)) == reach(config(**plain)) == 0
    assert reach(config(**long)) == 32


def test_paths_beyond_that_are_refused() -> None:
    model = phi3()
    kv_budget = KvBudget(
        of_engine.checked(loading.with_attention(model)).kv, Limits(context=loading.context(model))
    )
    check(Request(0, np.arange(28, dtype=np.int32), 0, Sampling(max_new_tokens=4)), kv_budget, 64)
    with pytest.raises(
        InvalidInput, match=r"a path of 33 tokens .* is longer than the model's context of 32"
    ):
        check(
            Request(0, np.arange(29, dtype=np.int32), 0, Sampling(max_new_tokens=4)), kv_budget, 64
        )
    prepared = models.prepare(phi3())
    pieces = of_learner.trees(np.arange(32 + 3 * 2) % 64)
    row = packing.pack(pieces, 1000)[0]
    with pytest.raises(
        NotReady,
        match=r"model type 'phi3' rotates all tokens otherwise .* longer than 32, .* one of 34;",
    ):
        models.forward(prepared, row)


# -- when it is made --


def test_each_load_compares_once_and_a_new_policy_does_not(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    made_of: list[int] = []
    inner = eager_pass.logprobs
    monkeypatch.setattr(eager_pass, "logprobs", lambda *given: made_of.append(1) or inner(*given))
    tiny_llama().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    resources = {"dtype": "float32", "max_branches": 4, "kv_tokens": 512}
    said = {
        "name": "x",
        "model": str(tmp_path),
        "task": {"name": "arithmetic"},
        "resources": resources,
    }
    engine = maker(resolve(said), 1)()
    assert len(made_of) == 1
    engine.load(*save_weights(tmp_path, tiny_llama(1), 1))
    assert len(made_of) == 1 and engine.stats().sampled_tokens == 0


async def test_a_learner_is_compared_before_it_trains(tmp_path: Path, monkeypatch: Patch) -> None:
    tiny_llama().save_pretrained(tmp_path)
    thread = TorchThread(recipe(1), 1)
    try:
        await thread.load(tmp_path, resumed=False)
        monkeypatch.setattr(
            treemask,
            "visible",
            lambda enter, leave: torch.ones(len(enter), len(enter), dtype=torch.bool),
        )
        with pytest.raises(NotReady, match="the learner computes another model"):
            await thread.load(tmp_path, resumed=False)
    finally:
        await asyncio.to_thread(thread.done)


@pytest.mark.parametrize(
    ("case", "shared"),
    [("llama", True), ("deepseek3", False), ("diffllama", False), ("mpt", False)],
)
def test_only_layers_that_attend_to_just_what_they_cache_share_a_trunk(
    case: str, shared: bool
) -> None:
    assert engine_of(case).by_level is shared
