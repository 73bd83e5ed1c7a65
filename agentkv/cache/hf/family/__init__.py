"""Model families, a module each. A module is named after `config.model_type` of transformers, and
its `FAMILY` declares what the cache has to know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Names of the modules of a family that the cache reads."""

    layers: str = "layers"
    """Decoder layers, in the base model."""
    attention: str = "self_attn"
    """Attention, in a decoder layer."""
    projection: str = "o_proj"
    """Output projection, in the attention."""
    added: str = "self_attn"
    """Module of a decoder layer whose output is added to the residual stream; empty if something
    else is added, such as a multiple of it."""
    compiled: str = ""
    """Prefix of the classes of transformers if the compiled step serves the family: layers like
    Llama's, perhaps with biases, or norms of queries and keys. Empty if it does not."""
