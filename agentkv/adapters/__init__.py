"""Doors to other programs: each module speaks the interface of one of them."""
