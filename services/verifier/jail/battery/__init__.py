"""The battery: attempts to break out of a jail, run before a back end is trusted."""
