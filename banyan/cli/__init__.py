"""Command line. Commands import services only when they run."""
