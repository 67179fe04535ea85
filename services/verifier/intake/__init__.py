"""The intake of one run: what is under way, what waits, and when the rest comes again."""
