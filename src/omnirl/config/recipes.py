"""Work on recipe files: list."""
