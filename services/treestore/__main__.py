"""`python -m services.treestore`: the only process that opens the database."""

from services.chassis.process.process import main
from services.chassis.process.settings import read
from services.treestore.storage.settings import Settings


def _run() -> None:
    from services.treestore.service import run

    main("treestore", lambda stop: run(read(Settings), stop))


if __name__ == "__main__":
    _run()
