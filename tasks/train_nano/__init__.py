"""The recipe of the default model: tokenizer, drills, recorded episodes, training.

    PYTHONPATH=tasks python -m nano.train

Not part of the wheel; the model that came out lies in `agentkv/models/nano/`.
"""
