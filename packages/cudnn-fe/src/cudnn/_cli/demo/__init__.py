"""The demo: a small language model trained through gemm_swiglu and checked against plain framework ops."""
