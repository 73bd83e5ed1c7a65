"""Training recipe of the default model: tokenizer, synthetic and recorded data, training.

    python -m train_nano.train

The package is not part of the wheel. The trained model is in `agentkv/models/nano/`.
"""
