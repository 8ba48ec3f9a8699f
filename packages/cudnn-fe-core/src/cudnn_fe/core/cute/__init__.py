"""Building blocks for kernels in the CuTe DSL. Importing one of its modules imports the DSL; this file does not.

Letters that the kernels use, after CuTe's custom:

- ``m`` a whole tensor in global memory, ``g`` a tile of it, ``s`` in shared memory, ``r`` in registers.
- ``t`` a thread's (or one TMA instruction's) part: ``tAsA`` is A's part, partitioned for A's copy, in shared memory.
- ``M``, ``N``, ``K``, ``L`` rows, columns, summed dimension, batch.
- *CTA*: thread block; *cluster*: CTAs on neighbouring multiprocessors that reach each other's shared memory.
- *warpgroup*: four warps that issue one WGMMA together; *WGMMA*: Hopper's asynchronous matrix product.
- *TMA*: the copy engine for tensor tiles; *stage*: one slot of the shared-memory ring between it and the WGMMAs.
- *fragment*: the accumulator values that one thread holds: rows ``lane / 4`` and ``+ 8`` of its warp's 16,
  columns ``2 * (lane % 4)`` and ``+ 1`` of every 8.
"""
