"""Stub until core lands."""
def serving_backend(op: str, device: str) -> str:
    return "reference"
