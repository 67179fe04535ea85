"""Answers of a model in this process: by the engine of rollout nodes, without a system."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan import draws
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.segment import Finish, Sampling

if TYPE_CHECKING:
    from services.rollout.engines.port import Engine

Messages = Sequence[Mapping[str, str]]
_AT_ONCE = 256  # requests that wait in the engine


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a prompt.

    tokens: number of its tokens
    finish: STOP, or LENGTH if it was ended by its limit
    """

    text: str
    tokens: int
    finish: str


class Answerer:
    """A loaded model.

    recipe: whose resources it uses
    folder: of the model
    answered: prompts of the call under way that have their answer
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        from transformers.utils import logging

        from services.rollout.engines import factory

        untyped: Any = logging
        untyped.disable_progress_bar()  # its lines would stand among the answers
        if recipe.resources.engine == "vllm":
            recipe = recipe.model_copy(
                update={"resources": recipe.resources.model_copy(update={"engine": "torch"})}
            )
        self.answered = 0
        self._engine: Engine = factory.maker(
            recipe.model_copy(update={"model": str(folder)}), None
        )()

    def answers(self, prompts: Sequence[Messages], sampling: Sampling) -> list[Answer]:
        """Return an answer to each conversation.

        Draws are keyed by the place of a prompt in the list and by `sampling.seed`. Raises
        InvalidInput for a prompt that the model or its memory is too small for.
        """
        done: dict[int, Answer] = {}
        self.answered = 0
        waiting = iter(enumerate(prompts))
        self._submit(waiting, sampling, _AT_ONCE)
        while len(done) < len(prompts):
            ended = self._engine.step()
            for sampled in ended:
                if sampled.finish is Finish.ABORTED:
                    raise InvalidInput(f"prompt {sampled.key} does not fit into the engine")
                text = self._engine.tokenizer.decode(sampled.tokens_T)
                finish = "STOP" if sampled.finish is Finish.STOP else "LENGTH"
                done[int(str(sampled.key))] = Answer(text, len(sampled.tokens_T), finish)
            self.answered = len(done)
            self._submit(waiting, sampling, len(ended))
        return [done[number] for number in range(len(prompts))]

    def _submit(
        self, waiting: Iterator[tuple[int, Messages]], sampling: Sampling, most: int
    ) -> None:
        from services.rollout.engines.port import Request

        for _, (number, messages) in zip(range(most), waiting, strict=False):
            self._engine.submit(
                Request(
                    key=number,
                    prefix_P=self._engine.tokenizer.encode_chat(messages),
                    draw_key=draws.key(sampling.seed, "answer", number),
                    sampling=sampling,
                    order=(number,),
                )
            )


def sampling_of(
    recipe: Recipe, *, temperature: float, max_new_tokens: int | None, seed: int
) -> Sampling:
    """Return the sampling of a command, with stop strings and lengths of a recipe."""
    generate = recipe.generate
    return Sampling(
        temperature=temperature,
        max_new_tokens=max_new_tokens or generate.max_new_tokens,
        stop=tuple(generate.stop),
        seed=seed,
    )
