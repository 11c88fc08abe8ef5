"""Two runs that write to one folder of rows."""

from __future__ import annotations

from pathlib import Path

from fault_injection.fork_server import ForkServer


def test_two_runs_with_one_folder_of_rows(server: ForkServer, tmp_path: Path) -> None:
    """Each row is there once, whichever process has written it."""
    old, new = tmp_path / "old" / "files", tmp_path / "other" / "files"
    server.child(("make", "rows", old, 1))
    _, second = server.child(("make", "rows", new, 2), ("look", "rows", new))
    (outcomes,) = server.child(("interleaved_everywhere", "rows", tmp_path / "both" / "files", old, 2))
    assert isinstance(outcomes, list), outcomes
    assert len(outcomes) >= 8
    for codes, _, rows, _ in outcomes:
        assert codes == [0, 0]
        assert sorted(rows) == sorted(second)
    # The second one waits where the first is stopped with the file in its hands, and goes ahead where it is not.
    assert {waited for _, waited, _, _ in outcomes} == {True, False}
