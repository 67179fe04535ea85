"""A tiny model in a folder, its engines behind one handle, and the arithmetic that judges them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from banyan.policy import PolicyVersion
from banyan.recipe import Resources
from banyan.segment import IntTokens, Sampling
from services.chassis.weights import file
from services.rollout.engines.port import Engine, Request, Sampled
from services.rollout.engines.scripted.engine import build as build_scripted
from services.rollout.engines.torch_engine import loading
from services.rollout.engines.vllm_engine import start
from tests.system.tiny import byte_tokenizer

VOCABULARY = 257
TOLERANCE = 1e-4
LARGE = 0.1  # nats: a fault shows at least so much
BASE, OTHER = 0, 1  # seeds of two policies that disagree
KV_TOKENS, BRANCHES = 16_384, 32


def model(seed: int) -> PreTrainedModel:
    """Return the model of a policy.

    It has two layers, four query heads on two kv heads of 32, float32, and is peaked enough that
    wrong positions show.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.25,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    made: PreTrainedModel = LlamaForCausalLM(config).eval().requires_grad_(False)
    return made


@dataclass
class Rig:
    """An engine under test. shared: tokens of a block that branches share, 1 for any prefix."""

    name: str
    engine: Engine
    folder: Path
    shared: int = 1
    lora_rank: int = 0
    models: dict[int, PreTrainedModel] = field(default_factory=dict)
    policies: dict[int, tuple[PolicyVersion, Path]] = field(default_factory=dict)

    def model(self, seed: int = BASE) -> PreTrainedModel:
        """Return the reference model of a policy."""
        return self.models.setdefault(seed, model(seed))

    def policy(self, seed: int) -> tuple[PolicyVersion, Path]:
        """Publish a policy in float32, so that comparisons are exact."""
        if seed not in self.policies:
            state = self.model(seed).state_dict()
            manifest = file.write(self.folder, f"policy-1-{seed}", state, 1, seed, dtype="float32")
            self.policies[seed] = PolicyVersion(1, seed, manifest.digest), manifest.manifest_path
        return self.policies[seed]

    def reset(self, eos: bool = False) -> None:
        """Reset the engine to the first policy, idle and without cached prefixes.

        Without `eos` every segment runs to its limit.
        """
        for sampled in list(drain(self.engine)):
            raise AssertionError(f"{sampled.key} was left by another test")
        self.engine.tokenizer.eos = frozenset({1}) if eos else frozenset()
        if self.name != "scripted" and not self.lora_rank:
            self.engine.load(*self.policy(BASE))
        self.engine.forget()

    def cached(self, tokens: int, prefix: int) -> int:
        """Return the reused tokens of a prefix if `tokens` of it are cached.

        Its last token is always prefilled.
        """
        return min(tokens, prefix - 1) // self.shared * self.shared


def drain(engine: Engine) -> Iterable[Sampled]:
    """Step until no branch runs."""
    while engine.busy:
        yield from engine.step()


def torch_rig(folder: Path) -> Rig:
    from services.rollout.engines.torch_engine import attention
    from services.rollout.engines.torch_engine.engine import TorchEngine
    from services.rollout.engines.torch_engine.forward import Forward
    from services.rollout.engines.torch_engine.kv.kv_budget import Limits

    reference = model(BASE)
    reference.set_attn_implementation(attention.NAME)
    limits = Limits(kv_tokens=KV_TOKENS, max_branches=BRANCHES, context=512)
    tokenizer = loading.ChatTokenizer(folder, reference)
    return Rig(
        "torch",
        TorchEngine(Forward(reference), tokenizer, limits, PolicyVersion(1, 0, b"p0")),
        folder,
    )


def vllm_rig(folder: Path, lora_rank: int = 0) -> Rig:
    settings = {"lora_rank": lora_rank} if lora_rank else {}
    resources = Resources(
        engine="vllm",
        kv_tokens=KV_TOKENS,
        max_branches=BRANCHES,
        dtype="float32",
        engine_settings=settings,
    )
    engine = start.build(folder, resources, 1, PolicyVersion(1, 0, b"p0"))
    engine.turn_s = 0.005  # tests go on by hand, in small steps
    return Rig("vllm", engine, folder, shared=32, lora_rank=lora_rank)


def scripted_rig(folder: Path) -> Rig:
    return Rig("scripted", build_scripted({}, PolicyVersion(1, 0, b"p0"), BRANCHES), folder)


RIGS: dict[str, Callable[[Path], Rig]] = {
    "torch": torch_rig,
    "vllm": vllm_rig,
    "scripted": scripted_rig,
    "lora": lambda folder: vllm_rig(folder, lora_rank=4),
}


def model_folder(folder: Path) -> Path:
    """Write the first policy's model, with a tokenizer of bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    model(BASE).save_pretrained(folder)
    byte_tokenizer(folder)
    return folder


def prompt(length: int, seed: int = 0) -> IntTokens:
    """Return a random prompt."""
    return np.random.default_rng(1000 * seed + length).integers(2, 72, length).astype(np.int32)


def ask(
    key: object,
    prefix: IntTokens,
    draw_key: int = 1,
    more: dict[str, object] | None = None,
    **sampling: object,
) -> Request:
    """Return a request; `more`: fields beside its sampling."""
    return Request(
        key, prefix, draw_key, Sampling(**{"max_new_tokens": 8, **sampling}), **(more or {})
    )  # type: ignore[arg-type]


def finish(
    engine: Engine, requests: Iterable[Request] = (), most_steps: int = 200_000
) -> dict[object, Sampled]:
    """Submit requests, step until all end, and return the segments by key."""
    for request in requests:
        engine.submit(request)
    ended: dict[object, Sampled] = {}
    for _ in range(most_steps):
        if not engine.busy:
            return ended
        for sampled in engine.step():
            assert sampled.key not in ended, f"{sampled.key} ended twice"
            ended[sampled.key] = sampled
    raise AssertionError(f"not done after {most_steps} steps: {engine.stats()}")


def taught(
    reference: PreTrainedModel, prefix: IntTokens, tokens: IntTokens, temperature: float = 1.0
) -> np.ndarray:
    """Return log softmax(logits / T) [T, V] of all tokens after a prefix, by one plain pass."""
    ids = torch.tensor(np.concatenate((prefix, tokens)), dtype=torch.long)[None]
    with torch.no_grad():
        logits = reference(input_ids=ids, use_cache=False).logits[0].float()
    at = slice(len(prefix) - 1, len(prefix) + len(tokens) - 1)
    return torch.log_softmax(logits[at] / (temperature or 1.0), -1).numpy()


def of(table_T_V: np.ndarray, tokens: IntTokens) -> np.ndarray:
    """Return the tokens' entries."""
    return table_T_V[np.arange(len(tokens)), tokens]


def gap(
    reference: PreTrainedModel,
    one: Sampled,
    request: Request,
    prefix: IntTokens | None = None,
    **changed: float,
) -> float:
    """Return the largest gap between a segment's log-probs and a teacher-forced pass.

    The pass has the request's settings but for `changed`, which must show.
    """
    given = request.prefix_P if prefix is None else prefix
    temperature = changed.get("temperature", request.sampling.temperature)
    table = taught(reference, given, one.tokens_T, temperature)
    return (
        float(np.abs(of(table, one.tokens_T) - one.logprobs_T).max()) if len(one.tokens_T) else 0.0
    )


def with_canary(
    path: Path, folder: Path, reference: PreTrainedModel, tolerance: float = 0.01
) -> Path:
    """Return a copy of a weight manifest with the log-probs of 32 tokens under a model."""
    tokens = prompt(32, 9)
    expected = of(taught(reference, tokens[:1], tokens[1:]), tokens[1:])
    said = {"tokens": tokens.tolist(), "logprobs": expected.tolist(), "tolerance": tolerance}
    copy = folder / path.name
    copy.write_text(json.dumps(json.loads(path.read_text()) | {"canary": said}))
    copy.with_suffix(".bin").unlink(missing_ok=True)
    copy.with_suffix(".bin").symlink_to(path.with_suffix(".bin").resolve())
    return copy
