"""The output of git between two snapshots, as files with their changes."""

from __future__ import annotations

from cooperbench.runner.workspace_tracker import parse_changes

RAW = ":100644 100644 1111111 2222222 "


def entries(output: str) -> list[tuple[str, str, int | None, int | None]]:
    files = parse_changes(output.replace("|", "\0").encode("utf-8", "surrogateescape"))
    return [(file.path, file.status, file.added, file.removed) for file in files]


def test_status_and_lines_of_each_file() -> None:
    output = f"{RAW}M|src/a.py|{RAW}D|b c.txt|{RAW}A|logo.png|1\t2\tsrc/a.py|0\t9\tb c.txt|-\t-\tlogo.png|"
    assert entries(output) == [
        ("src/a.py", "M", 1, 2),
        ("b c.txt", "D", 0, 9),
        ("logo.png", "A", None, None),
    ]


def test_names_that_look_like_something_else() -> None:
    output = f"{RAW}A|:x M|{RAW}A|1\t1\ttab|{RAW}A|\udcff.txt|3\t0\t:x M|4\t0\t1\t1\ttab|5\t0\t\udcff.txt|"
    assert entries(output) == [
        (":x M", "A", 3, 0),
        ("1\t1\ttab", "A", 4, 0),
        ("\ufffd.txt", "A", 5, 0),
    ]


def test_output_that_was_cut() -> None:
    output = f"{RAW}M|a|{RAW}M|b|1\t1\ta|7\t"
    assert entries(output) == [("a", "M", 1, 1), ("b", "M", None, None)]
    assert entries(f"{RAW}M|a|{RAW}M|lo") == [("a", "M", None, None)]
    assert entries("") == []
