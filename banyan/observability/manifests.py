"""`make observability`: write what k8s/observability holds of dashboards and rules.

Usage: python -m banyan.observability.manifests [DOCS], where DOCS is the address of
docs/operations.md that alerts shall name, for an overlay of one's own.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from banyan.observability import grafana, rules

FOLDER = Path("k8s/observability")


def files(docs: str = rules.DOCS) -> Mapping[Path, str]:
    """Return the content of each file, by its path below FOLDER."""
    boards = {
        Path("dashboards") / f"banyan-{name}.json": grafana.dashboard_file(name, description)
        for name, description in grafana.descriptions().items()
    }
    return {
        Path("rules.yaml"): rules.rule_file(docs),
        Path("prometheusrule.yaml"): rules.manifest(docs),
        **boards,
    }


def main() -> None:
    """Write all files."""
    for path, text in files(*sys.argv[1:2]).items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_text(text)


if __name__ == "__main__":
    main()
