"""Recordings: solutions and successful episodes, played again, and what a person does."""
