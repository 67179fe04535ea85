"""An OpenAI-compatible endpoint: a question, repeated while the endpoint is away, and its reply.

Nothing of a question or a reply is ever part of an error or of the log.
"""

import asyncio
import json
import logging
import random
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from banyan.errors import PermanentError, TemporaryError
from banyan.plugins.ask import Asker, Question
from services.verifier.judging import http
from services.verifier.judging.spending import Spending
from services.verifier.sandbox.fair_slots import FairSlots

log = logging.getLogger(__name__)
_AWAY = {408, 409, 425, 429}  # and all from 500 on
_FIRST_S, _LONGEST_S = 0.25, 8.0
_LONGEST_ASKED_S = 60  # that a Retry-After is followed


class Away(TemporaryError):
    """The endpoint gave no reply this time."""


class Endpoint:
    """The endpoint of a judge.

    key: what opens it; empty for nothing.
    away: names of endpoints that were said to be away, and have not answered since.
    """

    def __init__(self, asker: Asker, key: str, slots: FairSlots, away: set[str]) -> None:
        self._asker, self._slots, self._away = asker, slots, away
        self._url = f"{asker.base_url.rstrip('/')}/chat/completions"
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self.name = f"{asker.name} at {urlsplit(asker.base_url).netloc}"
        self.trouble = "it did not answer"

    async def reply(self, question: Question, spending: Spending) -> str:
        """Return the reply's text; try again as long as the caller waits.

        Raise Spent if the run's budget is used up, PermanentError if the endpoint refuses.
        """
        body = json.dumps(self._body(question)).encode()
        wait_s = _FIRST_S
        while True:
            try:
                async with self._slots.slot(spending.run_id):
                    spending.begin(self._asker)
                    text = self._text(await self._post(body), spending)
                self._away.discard(self.name)
                return text
            except Away as error:
                self.trouble = str(error)
                if self.name not in self._away:
                    self._away.add(self.name)
                    seconds = f"{self._asker.seconds:g} s"
                    log.warning("%s: %s; it is asked again, for %s", self.name, error, seconds)
                await asyncio.sleep(max(error.delay_s, random.uniform(wait_s / 2, wait_s)))
                wait_s = min(2 * wait_s, _LONGEST_S)

    def _body(self, question: Question) -> dict[str, Any]:
        asker = self._asker
        body = {
            "model": asker.model,
            "messages": [{"role": role, "content": text} for role, text in question.messages],
            "temperature": asker.temperature,
            "max_tokens": asker.max_tokens,
            **asker.extra,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def _post(self, body: bytes) -> Mapping[str, Any]:
        try:
            response = await http.post(self._url, body, self._headers)
        except OSError as error:
            raise Away(f"{type(error).__name__} {error.errno or ''}".strip(), 0.0) from None
        except http.BadReply as error:
            raise Away(str(error), 0.0) from None
        if response.status in _AWAY or response.status >= 500:
            raise Away(_said(response.status), _asked_s(response.headers.get("retry-after", "")))
        if response.status != HTTPStatus.OK:
            raise PermanentError(
                f"{self.name} answers {_said(response.status)}; look at base_url, model, extra and "
                "the key"
            )
        try:
            message = json.loads(response.body)
        except (ValueError, RecursionError):
            raise Away("its reply is no JSON", 0.0) from None
        return message if isinstance(message, dict) else {}

    def _text(self, message: Mapping[str, Any], spending: Spending) -> str:
        """Return the text of a reply; empty for one without text, which is no vote."""
        try:
            text = message["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise Away("its reply has no choices[0].message.content", 0.0) from None
        usage = message.get("usage")
        tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
        if type(tokens) is int and tokens >= 0:
            spending.tokens += tokens
        elif self._asker.most_tokens:
            raise PermanentError(f"{self.name} counts no tokens; use most_requests")
        return text if isinstance(text, str) else ""


def _said(status: int) -> str:
    """Return a status in words of our own: the endpoint's may quote what it was asked."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status}"


def _asked_s(header: str) -> float:
    return min(float(header), _LONGEST_ASKED_S) if header.isdecimal() and len(header) < 9 else 0.0
