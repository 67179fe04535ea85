"""Speed, measured: each bench is a ratio to a named rival in one run on the same machine, the median of several."""
