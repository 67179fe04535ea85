"""What recipes/textworld.yaml needs: games as rows, and a small model that knows their words."""
