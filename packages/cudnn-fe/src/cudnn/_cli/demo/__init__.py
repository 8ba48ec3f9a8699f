"""The demo: a small language model trained through this project's ops and checked against plain framework ops."""
