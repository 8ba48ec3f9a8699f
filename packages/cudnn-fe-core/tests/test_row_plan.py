"""How rows are shared among threads: every vector has its place, and nothing asks for more than a target has."""

from __future__ import annotations

import pytest

from cudnn_fe.core.row_plan import row_plan

# One vector, odd counts, powers of two and their neighbours, what one CTA cannot hold, what no cluster can.
WIDTHS = [8, 24, 1016, 4096, 4104, 7168, 8192, 8200, 16384, 65536, 100000, 262144, 1 << 20]


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("columns", WIDTHS)
def test_a_plan_holds_the_whole_row(columns: int, least: int, clusters: bool) -> None:
    plan = row_plan(columns, least_threads=least, clusters=clusters)
    vectors = -(-columns // 8)
    assert plan.threads & (plan.threads - 1) == 0
    assert plan.threads >= least
    assert plan.block % 32 == 0
    assert plan.block <= 512
    assert plan.part * plan.ctas >= vectors
    assert plan.threads * plan.vectors * plan.tiles >= plan.part
    assert plan.threads * plan.vectors * (plan.tiles - 1) < plan.part  # no empty turn
    assert plan.kept_bytes <= 96 * 1024
    if plan.ctas > 1:
        assert plan.groups == 1
        assert plan.part % 2 == 0  # 16 channels stay in one CTA
        assert plan.ctas in (2, 4, 8)


def test_runs_of_vectors_stay_in_one_thread() -> None:
    for columns in (16, 48, 1024, 65536):
        plan = row_plan(columns, run=2)
        assert plan.vectors % 2 == 0
        assert plan.threads * plan.vectors * plan.tiles >= plan.part


def test_clusters_serve_rows_that_one_block_cannot_hold() -> None:
    assert row_plan(8192, clusters=True).ctas == 1
    assert row_plan(8208, clusters=True).ctas == 2
    assert row_plan(262144, clusters=True).kept
    assert not row_plan(262144, clusters=False).kept
