"""Measures every attention definition on long sequences: seconds and memory of one call on this CPU.

    uv run python tools/long_attention.py [--tokens 32768] [--json FILE] [OP...]

Each op runs in a process of its own, with one or two heads of 64 channels and lists of 512 keys (the calls are those of
the testkit's `attention_lengths`). Memory is what the process holds at most beyond its operands.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import json, resource, sys, time
import torch
from cudnn_fe import attention
from cudnn_fe_testkit.attention_lengths import LENGTHS, Size

name, tokens = sys.argv[1], int(sys.argv[2])
operands, options = LENGTHS[name](Size(tokens, 64, 512))
small, few = LENGTHS[name](Size(512, 64, 64))
with torch.no_grad():
    getattr(attention, name)(*small, **few)  # what is imported or made once
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    before, start = peak(), time.perf_counter()
    getattr(attention, name)(*operands, **options)
    seconds = time.perf_counter() - start
print(json.dumps({"op": name, "tokens": tokens, "seconds": round(seconds, 2), "mib": round(peak() - before)}))
"""


def main() -> int:
    """Measure, print a row an op, and write them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--tokens", type=int, default=1 << 15)
    parser.add_argument("--limit", type=int, default=600, help="seconds that an op may take")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    from cudnn_fe_testkit.attention_lengths import LENGTHS

    rows = []
    for name in chosen.ops or LENGTHS:
        command = [sys.executable, "-c", CHILD, name, str(chosen.tokens)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=chosen.limit, check=True)
            row = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            row = {"op": name, "tokens": chosen.tokens, "error": f"{type(error).__name__}"}
        print(row, flush=True)
        rows.append(row)
    if chosen.json:
        machine = {"cores": os.cpu_count(), "rows": rows}
        chosen.json.write_text(json.dumps(machine, indent=1) + "\n")
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
