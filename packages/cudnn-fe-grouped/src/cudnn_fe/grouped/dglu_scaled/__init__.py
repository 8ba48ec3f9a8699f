"""The block-scaled mode of the grouped GEMM with a gated activation's derivative."""
