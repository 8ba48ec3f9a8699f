"""The unified namespace."""
