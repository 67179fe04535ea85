"""`python -m bench.pictures`: writes docs/seconds-to-90.svg from the recorded figures."""

from pathlib import Path

from bench.pages import tables
from bench.pictures.bars import drawn
from bench.pictures.seconds import panels

PICTURE = Path(__file__).parents[2] / "docs" / "seconds-to-90.svg"


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(drawn(panels(tables())), encoding="utf-8")


if __name__ == "__main__":
    main()
