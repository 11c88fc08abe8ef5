"""The text of the report: how it is read, and that it fits the experiments."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from askew_paper import notes
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.notes import read_notes

FOLDER = Path(__file__).parents[1] / "notes"


def test_every_experiment_has_its_file_and_no_other_is_there() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_sentence_is_used(name: str) -> None:
    experiment, text = EXPERIMENTS[name], read_notes(name)
    assert experiment.notes == text.notes
    assert experiment.needs == text.needs
    assert sorted(claim.text for claim in experiment.claims) == sorted(text.claims.values())


def test_lists_with_long_items(tmp_path: Path) -> None:
    needs, claims = "- numbers\n- paper\n  and pencil\n", "- one-two: First: it\n  holds\n- b: It does not"
    (tmp_path / "sums.md").write_text(f"# Sums\n\n## Needs\n\n{needs}\n## Claims\n\n{claims}")
    found = read_notes("sums", tmp_path)
    assert found.needs == ("numbers", "paper and pencil")
    assert found.notes == ()
    assert found.claims == {"one-two": "First: it holds", "b": "It does not"}
    with pytest.raises(
        ValueError, match=r"key of a claim in the notes of 'sums' must be one of .* Did you mean 'one-two'"
    ):
        found.claim("one-to")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("## Note\n\n- one", r"heading of line 3 of .*sums.md' must be one of .* Did you mean 'Notes'"),
        ("- one", r"heading of line 1 of .* must be one of"),
        ("## Notes\n\none", r"line 3 of .*sums.md' must be a heading, a list item or .*\. Got 'one' instead"),
        ("## Claims\n\n- no key", r"each claim in .*sums.md' must be 'key: sentence', each key once\. Got 'no key'"),
        ("## Claims\n\n- a: one\n- a: two", r"each key once\. Got 'a: two'"),
    ],
)
def test_files_of_another_form_are_refused(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "sums.md").write_text(text)
    with pytest.raises(ValueError, match=error):
        read_notes("sums", tmp_path)


def test_a_wheel_has_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=FOLDER.parent, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    texts = tmp_path / "askew_paper" / "texts"
    monkeypatch.setattr(notes, "FOLDERS", (tmp_path / "nowhere", texts))
    assert {path.stem for path in texts.iterdir()} == set(EXPERIMENTS)
    assert read_notes("timing").claims
