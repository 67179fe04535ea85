"""Training from a script or a notebook: its rows and its reward become files of a recipe."""
