"""The command line. Commands import services only when they run."""
