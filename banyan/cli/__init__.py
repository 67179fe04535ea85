"""The command line. Commands import services only when they run."""

from banyan.runtime.launch import take_names

take_names()
