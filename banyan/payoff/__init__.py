"""What a tree policy pays: the tokens that its trees share, and why it may share none."""
