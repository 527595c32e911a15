import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.embedded.tools.files import Files
from agentdiff.errors import ToolFailed
from tests.embedded_tools.desks import Bench

SECRET = "the secret outside"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder beside a secret, with links to it."""
    top = tmp_path_factory.mktemp("files")
    (top / "outside").mkdir()
    (top / "outside/secret.txt").write_text(SECRET)
    root = top / "root"
    for path, text in {
        "docs/budget.md": "Rent: 900\nFood: 300\n",
        "notes/budget-2026.txt": "the plan",
        "notes/ideas.md": "Kerberos and a bigger budget; the tax form",
        "src/main.py": "print('hi')\n",
        "README.md": "read me",
        "a/twice.txt": "one",
        "b/twice.txt": "two",
        "empty.txt": "",
        ".env": "hidden",
        ".git/config": "hidden budget",
        "node_modules/budget.js": "x",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "long.txt").write_text("x" * 5000)
    (root / "photo.bin").write_bytes(b"budget\0\1\2")
    (root / "link.txt").symlink_to(top / "outside/secret.txt")
    (root / "inner.txt").symlink_to(root / "README.md")
    (root / "linked").symlink_to(top / "outside")
    (root / "circle").symlink_to(root / "circle")
    os.mkfifo(root / "pipe.txt")
    return root


@pytest.fixture(scope="module")
def files(folder: Path) -> Files:
    return Files(folder)


@pytest.mark.parametrize(
    ("pattern", "result"),
    [
        ("*.py", "1 file: src/main.py"),
        ("src/*.py", "1 file: src/main.py"),
        ("**/*.py", "1 file: src/main.py"),
        ("Budget*", "2 files: docs/budget.md, notes/budget-2026.txt"),
        ("budget", "2 files: docs/budget.md, notes/budget-2026.txt; in the text of notes/ideas.md"),
        ("BUDGET 2026", "1 file: notes/budget-2026.txt"),
        ("kerberos", "1 file: notes/ideas.md"),
        ("'kerberos'", "1 file: notes/ideas.md"),
        ("the tax form", "1 file: notes/ideas.md"),
        ("form kerberos", "1 file: notes/ideas.md"),
        ("food", "1 file: docs/budget.md"),
        ("secret", "no files match secret"),
        ("hidden", "no files match hidden"),
        ("*.env", "no files match *.env"),
        ("inner", "1 file: inner.txt"),
        ("[", "no files match ["),
    ],
)
def test_files_are_found(files: Files, pattern: str, result: str) -> None:
    assert files.search_files(pattern) == result


def test_an_empty_pattern_is_refused(files: Files) -> None:
    with pytest.raises(ToolFailed, match="`pattern` is empty"):
        files.search_files(" '' ")


def test_many_files_are_counted_and_not_all_listed(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"f{number:02d}.txt").touch()
    found = Files(tmp_path).search_files("*.txt")
    assert found.startswith("30 files: f00.txt, ")
    assert found.endswith("f19.txt, and 10 more")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/budget.md", "Rent: 900\nFood: 300"),
        ("./docs/budget.md", "Rent: 900\nFood: 300"),
        ("docs\\budget.md", "Rent: 900\nFood: 300"),
        ("notes/../docs/budget.md", "Rent: 900\nFood: 300"),
        ("'README.md'", "read me"),
        ("ideas.md", "Kerberos and a bigger budget; the tax form"),
        ("readme.md", "read me"),
        ("inner.txt", "read me"),
        ("empty.txt", "empty.txt is empty"),
    ],
)
def test_a_file_is_read(files: Files, path: str, text: str) -> None:
    assert files.read_file(path) == text


def test_an_absolute_path_inside_the_folder_is_read(files: Files, folder: Path) -> None:
    assert files.read_file(str(folder / "README.md")) == "read me"


def test_of_a_long_file_it_says_how_much_is_left(files: Files) -> None:
    assert files.read_file("long.txt") == "x" * 4000 + "\n… (1000 more characters)"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../outside/secret.txt", "outside the working folder"),
        ("docs/../../outside/secret.txt", "outside the working folder"),
        ("link.txt", "outside the working folder"),
        ("linked/secret.txt", "outside the working folder"),
        ("/etc/hosts", "outside the working folder"),
        ("~/notes.txt", "outside the working folder"),
        ("C:\\Users\\kim\\notes.txt", "outside the working folder"),
        ("README", "did you mean README.md"),
        ("docs/bugdet.md", "did you mean docs/budget.md"),
        ("notes/nowhere.md", "there is no file 'notes/nowhere.md'"),
        ("twice.txt", "several files are named 'twice.txt': a/twice.txt, b/twice.txt"),
        ("docs", "is a folder; it holds budget.md"),
        ("", "is a folder"),
        ("photo.bin", "not a text file"),
        ("pipe.txt", "not a file that can be read"),
        ("circle", "cannot read|there is no file"),
        ("a\0b", "cannot read"),
        ("x" * 5000, "cannot read|there is no file"),
    ],
)
def test_what_cannot_be_read_is_refused(files: Files, path: str, message: str) -> None:
    with pytest.raises(ToolFailed, match=message):
        files.read_file(path)


NAMES = ".. . / // ~ docs notes linked outside secret.txt link.txt root etc passwd circle * ' \\ \0"
STEPS = st.sampled_from(NAMES.split(" "))


@given(st.lists(STEPS, max_size=8).map("/".join) | st.lists(STEPS).map("".join) | st.text())
def test_no_path_leads_outside(folder: Path, path: str) -> None:
    files = Files(folder)
    for call in (files.read_file, files.search_files):
        try:
            answer = call(path)
        except ToolFailed as failed:
            answer = str(failed)
        assert SECRET not in answer


@given(st.lists(STEPS, min_size=1, max_size=6).map("/".join))
def test_what_is_read_is_a_file_of_the_folder(folder: Path, path: str) -> None:
    try:
        text = Files(folder).read_file(path)
    except ToolFailed:
        return
    inside = [p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()]
    assert text in {p.read_bytes().decode(errors="replace").strip("\n") for p in inside}


async def test_searching_and_reading_are_called_as_tools(bench: Bench) -> None:
    (bench.root / "plan.md").write_text("step one")
    assert await bench("search_files", pattern="plan") == "1 file: plan.md"
    assert await bench("read_file", path="plan.md") == "step one"
