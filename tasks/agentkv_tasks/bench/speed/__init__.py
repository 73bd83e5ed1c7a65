"""What a cache costs in time: decoding beside transformers' own, checked before."""
