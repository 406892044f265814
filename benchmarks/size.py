"""Print how large the code is and how plainly it reads: python benchmarks/size.py

Lines and files by package, the longest file, and counts of what makes readers stumble per 1,000
lines. Needs only the standard library, so that `make size` installs nothing.
"""

from __future__ import annotations

from pathlib import Path

from _plain_code import SOURCE, TARGETS, count_findings, source_files

MAX_FILE_LINES = 600


def count_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text("utf-8").splitlines())


def package_of(path: Path) -> str:
    """Return the name of the package that a module is in."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "(top)"


def print_sizes(lines_by_path: dict[Path, int]) -> None:
    """Print lines and files of each package, and the longest file."""
    packages: dict[str, list[int]] = {}
    for path, lines in lines_by_path.items():
        packages.setdefault(package_of(path), []).append(lines)
    for name, sizes in sorted(packages.items()):
        print(f"{name:<16} {sum(sizes):>7,} lines in {len(sizes):>3} files")
    total = sum(lines_by_path.values())
    print(f"{'in all':<16} {total:>7,} lines in {len(lines_by_path):>3} files")
    longest = max(lines_by_path, key=lambda path: lines_by_path[path])
    shown = longest.relative_to(SOURCE)
    print(f"longest file: {shown}, {lines_by_path[longest]} lines (at most {MAX_FILE_LINES})")


def print_findings(lines_by_path: dict[Path, int]) -> None:
    """Print how often each kind of stumbling block is found."""
    total = sum(lines_by_path.values())
    counts = count_findings(lines_by_path)
    print(f"\n{'found in the code':<36} {'count':>6} {'per 1,000 lines':>16} {'target':>8}")
    for kind, target in TARGETS.items():
        rate = 1000 * counts[kind] / total
        limit = "" if target is None else f"{target:g}"
        mark = "  too many" if target is not None and rate > target else ""
        print(f"{kind:<36} {counts[kind]:>6,} {rate:>16.1f} {limit:>8}{mark}")


def main() -> None:
    """Print both tables."""
    lines_by_path = {path: count_lines(path) for path in source_files()}
    print_sizes(lines_by_path)
    print_findings(lines_by_path)


if __name__ == "__main__":
    main()
