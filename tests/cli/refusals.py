"""Recipe of the quick start, and refusals of commands."""

from tests.cli.command import ROOT, Said

ARITHMETIC = ROOT / "recipes" / "arithmetic.yaml"


def refused(result: Said[str], *words: str) -> None:
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr and result.stderr.count("error:") == 1
    message = " ".join(result.stderr.split())
    for word in words:
        assert word in message, message
