"""Files of a run in a state folder: its newest checkpoint, and the removal of all."""

import glob
import json
import shutil
from pathlib import Path

from banyan.errors import NotFound, Refused
from banyan.v1 import runstore_service_pb2 as rs

_PROCESSES = ("learner", "rollout")  # beginnings of the names of a run's log files
_WEIGHTS = ("checkpoints", "weights")  # large folders of a run


def remove(state: Path, run: rs.Run, everything: bool) -> None:
    """Remove checkpoints and weights; with `everything` also the run's logs and folder.

    The run's folder is removed only if it lies in the state folder: another may hold more. Raise
    Refused for files that cannot be removed.
    """
    runs = (state / "runs").resolve()
    folder = Path(run.folder).resolve() if run.folder else runs / run.run_id
    whole = everything and folder.parent == runs
    logs = [
        path
        for name in _PROCESSES
        for path in (state / "logs").glob(f"{name}-{glob.escape(run.run_id)}-[0-9]*.log*")
    ]
    for path in [folder] if whole else [folder / name for name in _WEIGHTS]:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Refused(
                f"cannot remove {error.filename or path}: {error.strerror}; fix that and "
                "run the command again",
                "FILES",
            ) from None
    for path in logs if everything else ():
        path.unlink(missing_ok=True)


def newest_checkpoint(folder: Path) -> Path:
    """Return the newest complete checkpoint of a run.

    Its manifest is written last, and its files are as long as the manifest says.
    """
    marked = [
        (age, path.parent)
        for path in folder.glob("checkpoints/step-*/manifest.json")
        if (age := _age(path))
    ]
    if not marked:
        raise NotFound(
            f"there is no checkpoint in {folder / 'checkpoints'}; the learner writes one at the "
            "end and on interrupt, and `banyan runs rm` removes it"
        )
    return max(marked)[1]


def _age(manifest: Path) -> tuple[int, int] | None:
    """Return the learner epoch and step of a checkpoint; None if it is incomplete."""
    try:
        content = json.loads(manifest.read_text())
        whole = all(
            (manifest.parent / name).stat().st_size == file["bytes"]
            for name, file in content["files"].items()
        )
        return (
            (int(content["mark"]["learner_epoch"]), int(content["mark"]["step"])) if whole else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
