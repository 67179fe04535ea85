"""`python -m banyan.cli`: the same as `banyan`."""

from banyan.cli.main import main

main()
