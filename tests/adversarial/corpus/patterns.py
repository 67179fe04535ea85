"""`regex` and `json-schema`, which run patterns of their owner on text of a model."""

from collections.abc import Iterator

from tests.adversarial.corpus.case import UNSCORABLE, Case, Subject, Table, cases
from tests.adversarial.corpus.generic import DEEP, MB, generic

ROW = {"question": "?", "answer": 6174, "wanted": {"n": 6174, "list": [1, 2.5, None, True]}}
EQUALS = Subject("regex", {"pattern": r"Answer: (-?\d+)\s*\Z", "equals": "answer"}, ROW)
SLOW = Subject("regex", {"pattern": r"(a+)+$"}, ROW)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "list": {"type": "array"}},
    "required": ["n"],
    "additionalProperties": False,
}
JSON = Subject("json-schema", {"schema": SCHEMA, "equals": "wanted"}, ROW)
VALID = Subject("json-schema", {"schema": SCHEMA}, ROW)
ALONE = Subject("json-schema", {"schema": SCHEMA, "alone": True}, ROW)
SLOW_SCHEMA = Subject("json-schema", {"schema": {"pattern": "^(a+)+$"}}, ROW)

MATCHES: Table = {
    "the answer": ("Answer: 6174", 1.0),
    "another answer": ("Answer: 6175", 0.0),
    "the answer before others": ("Answer: 6174\nAnswer: 1", 0.0),
    "the answer behind others": ("Answer: 1\nAnswer: 6174", 1.0),
    "the answer in other digits": ("Answer: \u0666\u0661\u0667\u0664", 0.0),
    "the answer with a NUL": ("Answer: 6174\0", 0.0),
    "the answer behind a surrogate": ("\ud800Answer: 6174", 1.0),
    "a megabyte before the answer": ("x" * MB + "Answer: 6174", 1.0),
    "the pattern itself": (r"Answer: (-?\d+)\s*\Z", 0.0),
}
RIGHT = '{"n": 6174, "list": [1, 2.5, null, true]}'
VALUES: Table = {
    "the value": (RIGHT, 1.0),
    "the value in a block": (f"Here:\n```json\n{RIGHT}\n```\n", 1.0),
    "the value in an open block": (f"```json\n{RIGHT}", 1.0),
    "the value in two blocks, the last wrong": (f"```\n{RIGHT}\n```\n```\n{{}}\n```", 0.0),
    "the value in a block of another language": (f"```python\n{RIGHT}\n```", 0.0),
    "the value and more": (RIGHT + RIGHT, 0.0),
    "text around it": (f"It is {RIGHT}.", 0.0),
    "a name twice": ('{"n": 1, "n": 6174, "list": [1, 2.5, null, true]}', 0.0),
    "1 for true": ('{"n": 6174, "list": [1, 2.5, null, 1]}', 0.0),
    "true for 1": ('{"n": 6174, "list": [true, 2.5, null, true]}', 0.0),
    "NaN": ('{"n": NaN, "list": []}', 0.0),
    "Infinity": ('{"n": Infinity}', 0.0),
    "a number beyond floats": ('{"n": 1e999}', 0.0),
    "a number of 400 digits": ('{"n": ' + "9" * 400 + "}", 0.0),
    "a number of a megabyte": ('{"n": ' + "9" * MB + "}", 0.0),
    "a number with a huge exponent": ('{"n": 1e' + "9" * 1000 + "}", 0.0),
    "a comment": (RIGHT + " // right", 0.0),
    "a trailing comma": ('{"n": 6174, "list": [1, 2.5, null, true],}', 0.0),
    "single quotes": (RIGHT.replace('"', "'"), 0.0),
    "a mark before it": ("\ufeff" + RIGHT, 0.0),
    "a zero-width space before it": ("\u200b" + RIGHT, 0.0),
    "a NUL behind it": (RIGHT + "\0", 0.0),
    "other digits": ('{"n": \u0666\u0661\u0667\u0664}', 0.0),
    "a name with a mark": ('{"n\u200b": 6174}', 0.0),
    "a name of Python": ('{"__class__": 1, "n": 6174}', 0.0),
    "deep objects": ('{"n": ' * DEEP + "1" + "}" * DEEP, 0.0),
    "a deep list": ('{"n": 1, "list": ' + "[" * DEEP + "]" * DEEP + "}", 0.0),
    "a list of a megabyte": ('{"n": 1, "list": [' + "1," * (MB // 2) + "1]}", 0.0),
    "lone surrogates": ('{"n": 1, "list": ["\\ud800"]}', 0.0),
    "unclosed": ('{"n": 6174', 0.0),
}
UNEQUAL: Table = {  # valid by the schema alone
    "any integer": ('{"n": 0}', 1.0),
    "an integer with a fraction of nothing": ('{"n": 1.0}', 1.0),
    "a fraction": ('{"n": 1.5}', 0.0),
    "true": ('{"n": true}', 0.0),
    "text": ('{"n": "1"}', 0.0),
    "lone surrogates": ('{"n": 1, "list": ["\\ud800"]}', 1.0),
    "64 levels": ('{"n": 1, "list": ' + "[" * 62 + "]" * 62 + "}", 1.0),
    "a list of a megabyte": ('{"n": 1, "list": [' + "1," * (MB // 2) + "1]}", 1.0),
}


def every() -> Iterator[Case]:
    """Yield the cases of both scorers."""
    yield from generic(EQUALS)
    yield from generic(JSON)
    yield from generic(VALID)
    yield from cases(EQUALS, MATCHES)
    yield from cases(JSON, VALUES)
    yield from cases(VALID, UNEQUAL)
    yield from cases(ALONE, {"a block": (f"```json\n{RIGHT}\n```", 0.0), "alone": (RIGHT, 1.0)})
    yield from cases(
        Subject("regex", {"pattern": "(x)", "equals": "no"}, ROW),
        {"a field that the row lacks": ("x", UNSCORABLE)},
    )
    yield from cases(
        Subject("json-schema", {"schema_field": "no"}, ROW),
        {"a schema that the row lacks": ("{}", UNSCORABLE)},
    )
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    yield from cases(
        Subject("json-schema", {"schema": circle}, ROW),
        {"a schema in a circle": ("{}", UNSCORABLE)},
    )
    yield from cases(SLOW, {"no backtracking": ("aaaa", 1.0)})
    forever: Table = {"endless backtracking": ("a" * 60 + "!", 0.0)}
    yield from cases(SLOW, forever, exhausts=True)
    yield from cases(
        SLOW_SCHEMA, {"endless backtracking": ('"' + "a" * 60 + '!"', 0.0)}, exhausts=True
    )
