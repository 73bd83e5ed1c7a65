"""A folder for the Hugging Face Hub: `model.generate(..., custom_generate=...)` with our cache."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""The folder, which holds `custom_generate/generate.py` as transformers expects it."""
