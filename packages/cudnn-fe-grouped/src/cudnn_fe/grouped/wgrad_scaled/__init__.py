"""The block-scaled mode of the grouped weight gradient."""
