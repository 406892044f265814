"""Makes a small repository with a history, for the tutorial "Your own tasks".

    python examples/make_library.py library

The commits have a fixed date, so they have the same ids everywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.invalid",
    "GIT_AUTHOR_DATE": "2026-01-01T12:00:00Z",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.invalid",
    "GIT_COMMITTER_DATE": "2026-01-01T12:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}

CATALOG = """\
from typing import NamedTuple


class Book(NamedTuple):
    title: str
    author: str
    year: int


def sort_by_title(books):
    return sorted(books, key=lambda book: book.title)
"""
CATALOG_TESTS = """\
import unittest

from library.catalog import Book, sort_by_title


class TestCatalog(unittest.TestCase):
    def test_sorting(self):
        emma = Book("Emma", "Jane Austen", 1815)
        persuasion = Book("Persuasion", "Jane Austen", 1817)
        self.assertEqual(sort_by_title([persuasion, emma]), [emma, persuasion])
"""
LISTS = """\
COLUMNS = ("title", "author")


def format_book(book):
    return " | ".join(str(getattr(book, column)) for column in COLUMNS)
"""
LOANS = """\
CENTS_PER_DAY = 10


def fee(days_late):
    return days_late * CENTS_PER_DAY
"""

LISTS_WITH_YEARS = """\
COLUMNS = ("title", "author", "year")


def format_book(book):
    return " | ".join(str(getattr(book, column)) for column in COLUMNS)
"""
YEAR_TESTS = """\
import unittest

from library.catalog import Book
from library.lists import format_book


class TestYears(unittest.TestCase):
    def test_year(self):
        emma = Book("Emma", "Jane Austen", 1815)
        self.assertEqual(format_book(emma).split(" | ")[2:], ["1815"])
"""
LISTS_WITH_SEPARATOR = """\
COLUMNS = ("title", "author", "year")
SEPARATOR = " | "


def format_book(book, separator=SEPARATOR):
    return separator.join(str(getattr(book, column)) for column in COLUMNS)
"""
SEPARATOR_TESTS = """\
import unittest

from library.catalog import Book
from library.lists import format_book


class TestSeparator(unittest.TestCase):
    def test_separator(self):
        emma = Book("Emma", "Jane Austen", 1815)
        text = format_book(emma, separator=", ")
        self.assertEqual(text[:17], "Emma, Jane Austen")
"""
CATALOG_WITH_SEARCH = f"""\
{CATALOG}

def find_by_author(books, author):
    return [book for book in books if author.lower() in book.author.lower()]
"""
SEARCH_TESTS = """\
import unittest

from library.catalog import Book, find_by_author


class TestSearch(unittest.TestCase):
    def test_case_does_not_matter(self):
        emma = Book("Emma", "Jane Austen", 1815)
        self.assertEqual(find_by_author([emma], "austen"), [emma])
        self.assertEqual(find_by_author([emma], "Eliot"), [])
"""
LOANS_WITH_GRACE = """\
CENTS_PER_DAY = 10
GRACE_DAYS = 3


def fee(days_late):
    return max(days_late - GRACE_DAYS, 0) * CENTS_PER_DAY
"""
FEE_TESTS = """\
import unittest

from library.loans import fee


class TestFees(unittest.TestCase):
    def test_grace(self):
        self.assertEqual([fee(2), fee(5)], [0, 20])
"""


class Commit(NamedTuple):
    """A commit: its message, and the files that it writes."""

    message: str
    files: dict[str, str]


HISTORY = (
    Commit(
        "Start a library",
        {
            "LICENSE": "MIT License\n\nCopyright 2026 Ada\n",
            "README.md": "# Library\n",
            "library/__init__.py": "",
            "library/catalog.py": CATALOG,
            "library/lists.py": LISTS,
            "library/loans.py": LOANS,
            "tests/__init__.py": "",
            "tests/test_catalog.py": CATALOG_TESTS,
        },
    ),
    Commit(
        "Show the year in lists (#3)\n\nThe year stands in a third column.",
        {"library/lists.py": LISTS_WITH_YEARS, "tests/test_years.py": YEAR_TESTS},
    ),
    Commit("Say what the library does", {"README.md": "# Library\n\nBooks, loans and lists.\n"}),
    Commit(
        "Let the separator of lists be chosen (#4)\n\nWithout one, lists look as before.",
        {"library/lists.py": LISTS_WITH_SEPARATOR, "tests/test_separator.py": SEPARATOR_TESTS},
    ),
    Commit(
        "Find books by their author (#6)\n\nUpper and lower case do not matter.",
        {"library/catalog.py": CATALOG_WITH_SEARCH, "tests/test_search.py": SEARCH_TESTS},
    ),
    Commit(
        "Charge nothing for the first three days (#7)",
        {"library/loans.py": LOANS_WITH_GRACE, "tests/test_fees.py": FEE_TESTS},
    ),
    Commit(
        "Test that titles are sorted",
        {
            "tests/test_catalog.py": CATALOG_TESTS.replace(
                "[persuasion, emma]", "{persuasion, emma}"
            )
        },
    ),
)


def main() -> None:
    """Write the repository to the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    run_git(folder, "init", "-q", "-b", "main")
    for commit in HISTORY:
        for name, content in commit.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        run_git(folder, "add", "-A")
        run_git(folder, "commit", "-q", "-m", commit.message)


def run_git(folder: Path, *argv: str) -> None:
    """Run git in the repository, without the user's configuration."""
    subprocess.run(("git", "-C", folder, *argv), env={**os.environ, **IDENTITY}, check=True)


if __name__ == "__main__":
    main()
