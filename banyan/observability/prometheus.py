"""Configuration of a Prometheus that reads the processes of a state folder. Pure."""

from pathlib import Path
from typing import Any

from banyan.observability.rules import dumped

JOB = "banyan"
"""Label `job` of all samples; alerts about processes ask for it."""
SCRAPE_S = 5


def configuration(state: Path, rule_file: Path, key_file: Path, every_s: float = SCRAPE_S) -> str:
    """Return the configuration file: targets are found as processes come and go.

    state: state folder; its metrics/*.json name the targets
    rule_file: rules and alerts
    key_file: key of the metrics
    every_s: seconds between two readings
    """
    every = f"{round(every_s * 1000)}ms"
    job: dict[str, Any] = {
        "job_name": JOB,
        "file_sd_configs": [
            {"files": [str(state / "metrics" / "*.json")], "refresh_interval": "5s"}
        ],
        "authorization": {"credentials_file": str(key_file)},
    }
    return dumped(
        {
            "global": {
                "scrape_interval": every,
                "scrape_timeout": every,
                "evaluation_interval": every,
            },
            "rule_files": [str(rule_file)],
            "scrape_configs": [job],
        }
    )
