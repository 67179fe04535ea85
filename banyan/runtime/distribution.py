"""Banyan as a package of an index: its name there, its version, how its extras are installed.

The index has another project's `banyan`, so the distribution is called otherwise than the package
that is imported and the command.
"""

from banyan.errors import InvalidInput

NAME = "banyan-rl"


def installed_version() -> str:
    """Return the version that is installed; raise InvalidInput if only a folder is on the path."""
    # Here, as confined scorers read the name alone, and start without this import.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(NAME)
    except PackageNotFoundError:
        raise InvalidInput(
            f"the package {NAME} is not installed, so neither its version nor its plugins are known"
            ": run make install in the source folder, or pip install -e ."
        ) from None


def install(*extras: str) -> str:
    """Return the command that installs Banyan with some of its extras."""
    return f"pip install '{NAME}[{','.join(extras)}]'" if extras else f"pip install {NAME}"
