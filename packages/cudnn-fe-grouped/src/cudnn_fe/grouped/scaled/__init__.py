"""What the block-scaled grouped GEMMs share: contracts, pieces of references, calls and classes."""
