"""Hand-made and random trees, and a tiny random Llama, for the learner's tests."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

from banyan.segment import Kind, Sampling, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

VOCABULARY = 40
torch.set_num_threads(1)


@dataclass
class Forest:
    """A builder of trees, segment by segment."""

    vocabulary: int = VOCABULARY
    temperature: float = 1.0

    def segment(
        self,
        tree: Tree,
        parent: Segment | None,
        tokens: Sequence[int],
        *,
        fork: int | None = None,
        ordinal: int = 0,
        kind: Kind = Kind.POLICY,
        policy: bytes = b"now",
        logprobs: Any = None,
        step: int = 0,
        epoch: int = 1,
    ) -> Segment:
        """Add one segment."""
        context = kind is not Kind.POLICY
        values = np.full(len(tokens), -1.0) if logprobs is None else logprobs
        if context:
            values = []
        end = len(parent) if parent else 0
        segment = Segment(
            tree.tree_id,
            parent=parent.id if parent else b"",
            fork=end if fork is None else fork,
            ordinal=ordinal,
            kind=kind,
            tokens_T=np.array(tokens, np.int32),
            logprobs_T=np.array(values, np.float32),
            policy=b"" if context else policy,
            sampling=Sampling(temperature=self.temperature),
            policy_step=step,
            policy_epoch=epoch,
        )
        tree.add(segment)
        return segment

    def two_level(self, rewards: Sequence[float | None], tree_id: bytes = b"t" * 32) -> TreeView:
        """Return root → a → (a1, a2), root → b → (b1, b2)."""
        tree = Tree(tree_id)
        root = self.segment(tree, None, [1, 2, 3], kind=Kind.PROMPT)
        leaves = []
        for i in range(2):
            middle = self.segment(tree, root, [4 + i, 6], ordinal=i)
            for j in range(2):
                leaves.append(Leaf(self.segment(tree, middle, [8 + j], ordinal=j).id, 1))
        return TreeView(tree, leaves, dict(zip(leaves, rewards, strict=True)))

    def flat(
        self,
        rewards: Sequence[float | None],
        tree_id: bytes = b"t" * 32,
        lengths: Sequence[int] = (),
    ) -> TreeView:
        """Return one prompt with a completion per reward."""
        tree = Tree(tree_id)
        root = self.segment(tree, None, [1, 2, 3], kind=Kind.PROMPT)
        sizes = lengths or [2] * len(rewards)
        completions = [
            self.segment(tree, root, [(5 + i + k) % self.vocabulary for k in range(n)], ordinal=i)
            for i, n in enumerate(sizes)
        ]
        leaves = [Leaf(s.id, len(s)) for s in completions]
        return TreeView(tree, leaves, dict(zip(leaves, rewards, strict=True)))

    def random(
        self,
        rng: np.random.Generator,
        segments: int = 8,
        longest: int = 5,
        begin: Sequence[int] = (),
    ) -> TreeView:
        """Return a tree with forks and leaves inside segments, context, and equal siblings."""
        tree = Tree(rng.bytes(32))
        prompt = [*begin, *rng.integers(0, 6, rng.integers(1, longest + 1))]
        grown = [self.segment(tree, None, prompt, kind=Kind.PROMPT)]
        for _ in range(segments):
            parent = grown[rng.integers(len(grown))]
            fork = len(parent)
            if rng.random() < 0.6 or len(grown) == 1:
                fork = int(rng.integers(1, len(parent) + 1))
            ordinal = sum(c.fork == fork for c in tree.children.get(parent.id, ()))
            size = int(rng.integers(1, longest + 1))
            kind = Kind.TOOL if rng.random() < 0.15 else Kind.POLICY
            logprobs = -rng.random(size) * 3 if kind is Kind.POLICY else None
            policy = b"old" if rng.random() < 0.3 else b"now"
            tokens = rng.integers(0, 6, size)  # so few that siblings often begin alike
            grown.append(
                self.segment(
                    tree,
                    parent,
                    tokens,
                    fork=fork,
                    ordinal=ordinal,
                    kind=kind,
                    logprobs=logprobs,
                    policy=policy,
                )
            )
        return TreeView(tree, *_leaves(tree, grown[1:], rng))


def _leaves(
    tree: Tree, grown: Sequence[Segment], rng: np.random.Generator
) -> tuple[list[Leaf], dict[Leaf, float | None]]:
    ends = [s for s in grown if s.id not in tree.children]
    leaves = [
        Leaf(s.id, len(s) if rng.random() < 0.7 else int(rng.integers(1, len(s) + 1))) for s in ends
    ]
    inner = [s for s in grown if s.id in tree.children]
    leaves += [Leaf(s.id, len(s)) for s in inner if rng.random() < 0.2]
    return leaves, {
        leaf: None if rng.random() < 0.1 else float(rng.integers(0, 3)) for leaf in leaves
    }


@pytest.fixture(scope="session")
def forest() -> Forest:
    return Forest()


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., Any]:
    """Return a function that makes a tiny random Llama in a dtype."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
        torch.manual_seed(seed)
        sizes = {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
        }
        heads = {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
        }
        config = LlamaConfig(**{**sizes, **heads, "initializer_range": 0.3, **changes})
        return LlamaForCausalLM(config).to(dtype).eval()

    return make


@pytest.fixture(scope="session")
def tiny_folder(tiny_llama: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Hugging Face folder with a tiny random Llama."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    tiny_llama(dtype=torch.float32).save_pretrained(folder)
    return folder
