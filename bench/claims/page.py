"""The table of docs/claims.md: `python -m bench.claims.page` writes it from the kept figures."""

from pathlib import Path

from bench.claims.claim import KEPT, Claim
from bench.claims.every import CLAIMS
from bench.harness.kept import Kept

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
BEGIN, END = "<!-- claims -->\n", "<!-- /claims -->"
COLUMNS = ("system", "claim", "ours", "n", "95 % interval", "on what", "verdict", "command")


def table(kept: Kept) -> str:
    """Return the table of all claims."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(_row(claim, kept) for claim in CLAIMS)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rewritten(text: str, kept: Kept) -> str:
    """Return a page's text with the table written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(kept)}\n\n{END}{after}"


def _row(claim: Claim, kept: Kept) -> tuple[str, ...]:
    found = claim.find(kept)
    command = f"`{claim.command}`" if claim.command else "–"
    return (
        claim.system,
        claim.says,
        found.ours,
        found.n,
        found.interval,
        found.on,
        f"**{found.verdict}**",
        command,
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(rewritten(PAGE.read_text(), Kept(KEPT)))


if __name__ == "__main__":
    main()
