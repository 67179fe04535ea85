"""Speed, measured: each bench is a ratio to a named rival on the same machine.

Both are measured in one run, and the ratio is the median of several.
"""
