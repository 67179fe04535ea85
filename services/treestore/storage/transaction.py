"""One transaction, repeated while its faults are such as pass."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from banyan.errors import TemporaryError
from banyan.reasons import Reason
from services.treestore.storage import faults, sqlite

T = TypeVar("T")
Work = Callable[[Connection], T]


def attempted(engine: Engine, work: Work[T], patience_s: float) -> T:
    """Run one transaction, and again after errors that pass within moments, until `patience_s` is
    over.

    Raises the database's own error if the data is at fault, StoreDamaged, or else TemporaryError
    (ADR 045).
    """
    end = time.monotonic() + patience_s
    driver: Any = engine.dialect.loaded_dbapi
    while True:
        try:
            with engine.begin() as connection:
                return work(connection)
        except (DBAPIError, driver.Error) as error:  # errors of connecting come unwrapped
            _check_fault(engine, error, driver)
            if not faults.soon_over(error, driver) or time.monotonic() > end:
                raise faults.meaning(error, driver) from error
        except TemporaryError as error:
            if error.reason != Reason.STORE_LOCKED or time.monotonic() > end:
                raise
        time.sleep(0.1)


def _check_fault(engine: Engine, error: Exception, driver: Any) -> None:
    """Raise the errors that do not pass: those of the data, and StoreDamaged."""
    cause = faults.cause_of(error)
    if faults.torn(cause):
        file = sqlite.file_of(engine)
        error_of = faults.damaged if faults.is_store(cause) else faults.no_store
        raise error_of(file, str(cause)) from None
    if faults.breaks_rule(cause, driver):
        raise error
