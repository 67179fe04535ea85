"""The rival: a plain GRPO loop.

Every prompt is prefilled and trained once per sample, and no group is skipped.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Messages = list[dict[str, str]]


@dataclass
class Samples:
    """Samples of one step.

    ids_B_T: prompt and answer, left-padded
    mask_B_T: tokens that are no padding
    answer_B_T: answer tokens
    """

    ids_B_T: torch.Tensor
    mask_B_T: torch.Tensor
    answer_B_T: torch.Tensor
    texts: list[str]
    seconds: float

    def prompts(self) -> list[list[int]]:
        """Return the ids of each sample's prompt."""
        prompt_B_T = self.mask_B_T & ~self.answer_B_T
        return [ids[mine].tolist() for ids, mine in zip(self.ids_B_T, prompt_B_T, strict=True)]


class NaiveLoop:
    """transformers' `generate` on repeated prompts, then a flat batch through the model."""

    def __init__(self, folder: Path, learning_rate: float, width: int, new_tokens: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.sampler: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=learning_rate, weight_decay=0.0, fused=True
        )
        self.width, self.new_tokens = width, new_tokens

    def sample(self, prompts: Sequence[Messages]) -> Samples:
        """Sample `width` answers per prompt at temperature 1, without truncation."""
        begun = time.perf_counter()
        texts = [
            self.tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True)
            for p in prompts
        ]
        repeated = [t for t in texts for _ in range(self.width)]
        batch = self.tokenizer(
            repeated, return_tensors="pt", padding=True, add_special_tokens=False
        )
        with torch.no_grad():
            ids = self.sampler.generate(
                **batch,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=self.new_tokens,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        start = batch["input_ids"].shape[1]
        answer = torch.zeros_like(ids, dtype=torch.bool)
        answer[:, start:] = _until_end(ids[:, start:], self.tokenizer.eos_token_id)
        mask = torch.cat([batch["attention_mask"].bool(), answer[:, start:]], dim=1)
        decoded = self.tokenizer.batch_decode(
            [r[a] for r, a in zip(ids, answer, strict=True)], skip_special_tokens=True
        )
        return Samples(ids, mask, answer, decoded, time.perf_counter() - begun)

    def set_rate(self, learning_rate: float) -> None:
        """Take the next steps at this rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def train(self, samples: Samples, rewards: Sequence[float]) -> float:
        """Take one clipped on-policy gradient step on the flat batch; return its seconds."""
        begun = time.perf_counter()
        reward = torch.tensor(rewards).view(-1, self.width)
        advantage = (
            (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-6)
        ).view(-1)
        positions = (samples.mask_B_T.long().cumsum(1) - 1).clamp(min=0)
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(
                samples.ids_B_T, attention_mask=samples.mask_B_T.long(), position_ids=positions
            ).logits
        logprobs = (
            logits[:, :-1]
            .float()
            .log_softmax(-1)
            .gather(-1, samples.ids_B_T[:, 1:, None])
            .squeeze(-1)
        )
        taken = samples.answer_B_T[:, 1:]
        ratio = (logprobs - logprobs.detach()).exp()
        loss = -((ratio * advantage[:, None]) * taken).sum() / taken.sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return time.perf_counter() - begun

    def refresh(self) -> None:
        """Copy the trained weights to the sampler, in memory."""
        with torch.no_grad():
            for target, source in zip(
                self.sampler.parameters(), self.model.parameters(), strict=True
            ):
                target.copy_(source)


def _until_end(ids_B_T: torch.Tensor, eos: int) -> torch.Tensor:
    """Return a mask that is True up to and with the first end token."""
    ended = (ids_B_T == eos).long().cumsum(1)
    return (ended - (ids_B_T == eos).long()) == 0
