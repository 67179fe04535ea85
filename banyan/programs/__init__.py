"""Programs that models write: their runs, how they are found in a text, how results compare."""
