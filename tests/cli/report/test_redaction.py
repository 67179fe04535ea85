"""Secrets that stand in a recipe are hidden wherever they stand, and nothing else is."""

from typing import Any

import pytest

from banyan.text.redaction import HIDDEN, redacted


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"env": {"HOME": "/x", "N": 3}}, {"env": {"HOME": HIDDEN, "N": 3}}),
        ({"headers": {"X-Who": ["me"]}}, {"headers": {"X-Who": [HIDDEN]}}),
        ({"credentials": {"user": "me"}}, {"credentials": {"user": HIDDEN}}),
        (["serve", "--api-key", "x", "-v"], ["serve", "--api-key", HIDDEN, "-v"]),
        (["--token=x", "API_KEY=y", "a=b"], [f"--token={HIDDEN}", f"API_KEY={HIDDEN}", "a=b"]),
        ("https://h/p?a=1&api_key=x#y", f"https://h/p?a=1&api_key={HIDDEN}#y"),
        ("https://h/p?Token=x&b=2", f"https://h/p?Token={HIDDEN}&b=2"),
        ("say Bearer abcdefgh1234", f"say Bearer {HIDDEN}"),
        ("curl -u hf_" + "a" * 30, f"curl -u {HIDDEN}"),
        ("key sk-proj-" + "a" * 40 + "!", f"key {HIDDEN}!"),
    ],
)
def test_secrets_are_hidden_wherever_they_stand(given: Any, shown: Any) -> None:
    assert redacted({"settings": given}) == {"settings": shown}


@pytest.mark.parametrize(
    "harmless",
    [
        ["--max-tokens", "5", "--tokenizer=x"],
        {"api_key_env": "NAME", "max_new_tokens": 4},
        "What is a Bearer of news? Ask sk-1, hf_x and https://h/p?a=1#key=z",
        "token by token, and a key: it opens",
        None,
        1.5,
    ],
)
def test_other_values_stay(harmless: Any) -> None:
    assert redacted({"settings": harmless}) == {"settings": harmless}
