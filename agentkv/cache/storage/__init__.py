"""Storage of one layer: tables of entries, and the backends that read and change them."""
