"""Tokens of a conversation, as a rollout would have made them, and which of them are trained.

A prompt is rendered by the model's template up to where the answer begins. Turns of the assistant
are texts of their own, as they are sampled. What lies between two of them are the tokens that a
rollout puts there: context, but for the end token with which the model hands over to the user. A
call hands over by its environment's end mark, so nothing behind that is trained; so does the action
with which a class of the user's own may end the episode.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from banyan.cli.sft.rows import Conversation, Message
from banyan.environments.renderers import CHATML, OURS, RendererSpec
from banyan.errors import InvalidInput
from banyan.recipe import Environment
from banyan.segment import IntTokens

if TYPE_CHECKING:
    from services.learner.sft.examples import Example

_PROBE = ("a question", "an answer")


class Renderer:
    """The tokenizer of a model's folder, with the environment of the recipe.

    model: the loaded model, for the tokens at which it stops
    turns: writes what stands between two turns of the assistant
    """

    def __init__(
        self,
        folder: Path,
        model: Any,
        environment: Environment | None,
        turns: RendererSpec = OURS,
    ) -> None:
        from banyan import registry
        from services.rollout.engines.torch_engine.loading import ChatTokenizer

        self._chat = ChatTokenizer(folder, model)
        self._turns = turns
        self._end = _end_token(folder, self._chat.eos)
        self._answer_chars = environment.answer_chars if environment else 0
        self._mark = ""
        self._episodes_end = environment is not None and ":" in environment.name
        if environment is not None:
            self._mark = registry.environment(
                environment.name, environment.settings, environment.hosting
            ).end

    def example(self, row: Conversation) -> "Example":
        """Return a row as an example. Raise InvalidInput with its place if it cannot be one."""
        from services.learner.sft import examples

        try:
            pieces = self._pieces(row)
        except InvalidInput as error:
            raise InvalidInput(f"{row.name}: {error}") from None
        token_T = np.concatenate([tokens for tokens, _ in pieces]).astype(np.int32)
        trained_T = np.concatenate([np.full(len(tokens), taught) for tokens, taught in pieces])
        return examples.of_row(row.name, row.key, token_T, trained_T)

    def _pieces(self, row: Conversation) -> list[tuple[IntTokens, bool]]:
        """Return runs of tokens, and whether they are trained."""
        pieces = [(self._prompt(row), False)]
        for number, turn in enumerate(row.turns):
            if turn["role"] == "assistant":
                self._refuse_unanswered(turn["content"], row.turns[number + 1 : number + 2])
                pieces.append((self._chat.encode(turn["content"]), True))
            else:
                pieces += self._between(pieces, row.turns[number - 1], turn)
        if self._ends_episode(row.turns[-1]["content"]):
            return pieces
        return [*pieces, (np.array([self._end], np.int32), True)]

    def _prompt(self, row: Conversation) -> IntTokens:
        if not self._mark:
            return self._chat.encode_chat(row.prompt)
        return np.array(self._chat.renderer(self._turns).render(row.prompt), np.int32)

    def _between(
        self, before: Sequence[tuple[IntTokens, bool]], said: Message, turn: Message
    ) -> list[tuple[IntTokens, bool]]:
        """Return the tokens from the end of the assistant's turn to its next one."""
        if turn["role"] == "tool":
            self._refuse_unlike_rollouts(said["content"], turn["content"])
            return [(self._bridged(before, turn["content"]), False)]
        if self._turns.name != CHATML:
            raise InvalidInput(
                f"a user's turn follows one of the assistant, where {self._turns} writes answers of"
                " tools alone; take rows with one question"
            )
        tokens_T = self._bridged(before, turn["content"])
        if int(tokens_T[0]) not in self._chat.eos:
            raise InvalidInput(
                "a user's turn follows one of the assistant, and this model has no chat template "
                "that ends a turn; take rows with one answer"
            )
        return [(tokens_T[:1], True), (tokens_T[1:], False)]

    def _bridged(self, before: Sequence[tuple[IntTokens, bool]], text: str) -> IntTokens:
        prompt = [token for tokens, _ in before[:-1] for token in tokens.tolist()]
        action = before[-1][0].tolist()
        ids = self._chat.renderer(self._turns).bridge(prompt, action, text)
        if ids is None:
            raise InvalidInput(f"no turn can follow {_brief(self._chat.decode(before[-1][0]))}")
        return np.array(ids, np.int32)

    def _ends_episode(self, last: str) -> bool:
        """Return true if the last turn is an action, behind which nothing is said."""
        return self._episodes_end and last.endswith(self._mark)

    def _refuse_unanswered(self, said: str, following: Sequence[Message]) -> None:
        is_answered = bool(following) and following[0]["role"] == "tool"
        if not following and self._ends_episode(said):
            return
        if self._mark and self._mark in said and not is_answered:
            raise InvalidInput(
                f"{_brief(said)} holds {self._mark!r}, where the environment would answer; put the "
                "tool's turn behind it"
            )

    def _refuse_unlike_rollouts(self, call: str, answer: str) -> None:
        if not self._mark:
            raise InvalidInput(
                "a tool's turn needs a recipe with `environment:`, whose end mark ends the call"
            )
        if not call.endswith(self._mark):
            raise InvalidInput(
                f"a tool's turn follows {_brief(call)}, which does not end with {self._mark!r}, "
                "where the environment answers; end the call there"
            )
        if len(answer) > self._answer_chars:
            raise InvalidInput(
                f"a tool's turn has {len(answer)} characters, and a path gets at most "
                f"{self._answer_chars}; shorten it, or raise environment.answer_chars"
            )


def _end_token(folder: Path, eos: frozenset[int]) -> int:
    """Return the token that ends a turn of the assistant, at which the model stops."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    if tokenizer.chat_template is not None:
        turns = [
            {"role": role, "content": text}
            for role, text in zip(("user", "assistant"), _PROBE, strict=True)
        ]
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
        behind = tokenizer(text.rpartition(_PROBE[1])[2], add_special_tokens=False)["input_ids"]
        end = behind[0] if behind else None
    if end is None or end not in eos:
        shown = "no token" if end is None else repr(tokenizer.decode([end]))
        raise InvalidInput(
            f"the tokenizer in {folder} ends a turn of the assistant with {shown}, at which the "
            "model does not stop; name that token as eos_token_id in its generation_config.json"
        )
    return int(end)


def _brief(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else "…" + shown[-79:]
