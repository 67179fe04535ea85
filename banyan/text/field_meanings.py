"""Meanings of settings: the texts that stand behind the fields of a class."""

import ast
import inspect
import textwrap


def field_meanings(form: type) -> dict[str, str]:
    """Return the text behind each field of a class."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(form))).body
    assert isinstance(body, ast.ClassDef)
    meanings = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            meanings[field.target.id] = " ".join(str(text.value.value).split())
    return meanings
