"""The command `cudnn-fe bench`."""


def bench(op: str) -> None:
    "x"
