"""Meaning of a database error for the messages of a transaction."""

from banyan.errors import TemporaryError
from services.treestore.storage import faults


def is_about_database(error: Exception) -> bool:
    """Return True if the database is busy, full or away: it would take no message, however good."""
    return isinstance(error, TemporaryError) and error.reason != faults.FAILED
