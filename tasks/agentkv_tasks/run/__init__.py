"""One run: its plan, its processes, and the terminal."""
