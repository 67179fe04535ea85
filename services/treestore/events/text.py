"""Text as every database stores it."""


def without_nul(text: str) -> str:
    """Return text without NUL, which a model may sample and PostgreSQL does not take."""
    return text.replace("\x00", "\ufffd") if "\x00" in text else text
