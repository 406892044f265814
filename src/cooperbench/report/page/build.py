"""The report as a file that opens from disk: one HTML document with compressed details of pairs.

Pairs are read, packed and written one by one, so that the memory needed does not grow with their
number. Style and script are allowed by their hash; markup is never parsed at run time (trusted
types forbid it). Data is JSON in script elements that browsers do not execute.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import msgspec

from cooperbench.bounded import UnreadableInput, call_bounded, limit_seconds
from cooperbench.errors import UserError
from cooperbench.report.coordination import Coordination, measure_run
from cooperbench.report.loading import Run, Side, sides_of
from cooperbench.report.page.overview import (
    CoordinationTable,
    MeasureText,
    Overview,
    make_overview,
    numbered_pairs,
    page_title,
)
from cooperbench.report.page.pair_detail import PairDetail, pair_detail, unreadable_detail
from cooperbench.report.pairs import PairData, PairKey

Mode = Literal["inside", "beside", "live"]
"""Location of the details of pairs: the document, scripts beside it, or the server of the page."""
THREADS = 2
"""Reading and compressing is half of the work, and threads do it in parallel."""
_COMPRESSION_LEVEL = 4
"""Takes half the time of the usual 6, for files that are 5 % larger."""
_COPY_BYTES = 1 << 20
_ASSETS = files("cooperbench.report.page") / "assets"
_DOCUMENT_END = "</body>\n</html>\n"

WriteDetail = Callable[[int, bytes], None]
"""Stores the packed details of the pair with a number."""


def build_page(runs: Sequence[Run], target: Path, *, split: bool = False) -> None:
    """Write the report.

    Args:
        runs: The runs to show.
        target: The HTML file.
        split: Write the details of pairs into a folder beside the file, one file for each pair.

    Raises:
        UserError: The runs have no pairs, or the file cannot be written.
    """
    if not any(run.pairs for run in runs):
        names = ", ".join(run.name for run in runs) or "no run"
        raise UserError(f"there are no pairs in {names}: nothing to show")
    if target.is_dir():
        example = target / "report.html"
        raise UserError(f"{target} is a folder; name the file to write, for example {example}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=target.parent) as temporary:
            page = Path(temporary, "page")
            details = Path(temporary, "details")
            if split:
                _write_split(runs, page, details, target.with_name(f"{target.stem}.pairs"))
            else:
                _write_single(runs, page, details)
            page.replace(target)
    except OSError as error:
        path = error.filename or target
        raise UserError(f"cannot write {target}: {path}: {error.strerror}") from None


def _write_single(runs: Sequence[Run], page: Path, details: Path) -> None:
    """Write one file. The overview comes first in it, but is known last."""
    with details.open("wb") as detail_file:

        def write_detail(number: int, packed: bytes) -> None:
            """Append a script element."""
            element = b'<script type="text/plain" id="detail-%d">%s</script>\n' % (number, packed)
            detail_file.write(element)

        overview = _write_details(runs, write_detail)
    with page.open("wb") as page_file, details.open("rb") as detail_file_again:
        page_file.write(document(page_title(runs), overview, "inside").encode())
        shutil.copyfileobj(detail_file_again, page_file, _COPY_BYTES)
        page_file.write(_DOCUMENT_END.encode())


def _write_split(runs: Sequence[Run], page: Path, details: Path, folder: Path) -> None:
    """Write the details into a folder, which replaces an older one before the page appears."""
    _check_is_ours(folder)
    details.mkdir()

    def write_detail(number: int, packed: bytes) -> None:
        """Write a script file."""
        script = b'cooperbenchDetail(%d,"%s")\n' % (number, packed)
        (details / f"{number}.js").write_bytes(script)

    overview = replace(_write_details(runs, write_detail), folder=folder.name)
    text = document(page_title(runs), overview, "beside") + _DOCUMENT_END
    page.write_text(text, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    details.rename(folder)


def _check_is_ours(folder: Path) -> None:
    """Refuse to replace a folder with files that no report has written."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.suffix != ".js":
            raise UserError(
                f"{folder} contains {path.name}, which no report wrote; move it or use another name"
            )


def _write_details(runs: Sequence[Run], write_detail: WriteDetail) -> Overview:
    """Write the details of every pair, and return the overview with the coordination measures."""
    pairs = numbered_pairs(runs)
    coordination_by_number: dict[int, Coordination] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for number, packed in enumerate(pool.map(pack_pair, pairs)):
            write_detail(number, packed.detail.encode())
            if packed.coordination is not None:
                coordination_by_number[number] = packed.coordination
    tables = []
    first_number = 0
    for side in sides_of(runs):
        by_key = {
            key: coordination_by_number[number]
            for number, key in enumerate(side.pairs, first_number)
            if number in coordination_by_number
        }
        first_number += len(side.pairs)
        table = _coordination_table(side, by_key)
        if table.rows:
            tables.append(table)
    return replace(make_overview(runs), coordination=tuple(tables))


def _coordination_table(
    side: Side, coordination_by_key: dict[PairKey, Coordination]
) -> CoordinationTable:
    def measure(pair: PairData) -> Coordination:
        """Return what was measured when the details were written."""
        return coordination_by_key[pair.key]

    rows = []
    for result in measure_run(list(side.pairs.values()), measure).measures:
        if result.estimate.n:
            n = f"{result.estimate.n} {result.unit}"
            rows.append(MeasureText(result.title, result.value_text, n))
    return CoordinationTable(side.label, tuple(rows))


class PackedPair(NamedTuple):
    """The details of a pair for the page."""

    detail: str
    """JSON, compressed and encoded in base64."""
    coordination: Coordination | None
    """How its agents worked together; None if they did not come to an end."""


def pack_pair(pair: PairData) -> PackedPair:
    """Return the details of a pair, which a worker process with limits reads: agents wrote them."""
    try:
        return call_bounded(read_and_pack_pair, pair)
    except UnreadableInput as problem:
        return _pack_detail(unreadable_detail(pair, str(problem)))


@limit_seconds(30)
def read_and_pack_pair(pair: PairData) -> PackedPair:
    """Return the details of a pair. Callers use `call_bounded`."""
    return _pack_detail(pair_detail(pair))


def _pack_detail(detail: PairDetail) -> PackedPair:
    compressed = gzip.compress(json_bytes(detail), _COMPRESSION_LEVEL, mtime=0)
    return PackedPair(base64.b64encode(compressed).decode(), detail.coordination)


def detail_json(pair: PairData) -> bytes:
    """Return the details of a pair as JSON, which a worker process with limits makes."""
    try:
        return call_bounded(read_detail_json, pair).encode()
    except UnreadableInput as problem:
        return json_bytes(unreadable_detail(pair, str(problem)))


@limit_seconds(30)
def read_detail_json(pair: PairData) -> str:
    """Return the details of a pair as JSON. Callers use `call_bounded`."""
    return json_bytes(pair_detail(pair)).decode()


def json_bytes(content: object) -> bytes:
    """Return data of the page as JSON. Bytes that were not UTF-8 are replaced."""
    data = msgspec.to_builtins(content, str_keys=True)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def embedded_json(content: object) -> str:
    """Return JSON for a script element: without `<`, so that nothing in it ends the element."""
    return json_bytes(content).decode().replace("<", "\\u003c")


@cache
def _read_assets(suffix: str) -> str:
    """Return all scripts or all styles in the order of their names, which begin with numbers."""
    assets = [asset for asset in _ASSETS.iterdir() if asset.name.endswith(suffix)]
    assets.sort(key=lambda asset: asset.name)
    return "\n".join(asset.read_text(encoding="utf-8") for asset in assets)


@cache
def _style() -> str:
    return _read_assets(".css")


@cache
def _script() -> str:
    """Return the scripts in a scope of their own, so that their names are not global."""
    return f'"use strict";\n(() => {{\n{_read_assets(".js")}\n}})();\n'


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def content_security_policy(mode: Mode) -> str:
    """Return the policy of the page: it loads nothing except the details of pairs.

    For details beside the page, `'self'` is for a web server and `file:` for a page on disk.
    """
    script_sources = _hash_source(_script())
    connections = "'none'"
    trusted_types = "'none'"
    if mode == "beside":
        script_sources += " 'self' file:"
        trusted_types = "cooperbench"
    if mode == "live":
        connections = "'self'"
    directives = {
        "default-src": "'none'",
        "script-src": script_sources,
        "style-src": _hash_source(_style()),
        "img-src": "data:",
        "connect-src": connections,
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": trusted_types,
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def document(title: str, overview: Overview, mode: Mode) -> str:
    """Return the document without the details, which may follow as script elements."""
    values = {
        "policy": html.escape(content_security_policy(mode)),
        "title": html.escape(title.encode("utf-8", "replace").decode()),
        "style": _style(),
        "overview": embedded_json(replace(overview, mode=mode)),
        "script": _script(),
    }
    template = (_ASSETS / "page.html").read_text(encoding="utf-8")
    # The template is text, @name@, text, @name@, …: every second piece is a name.
    pieces = template.split("@")
    for index in range(1, len(pieces), 2):
        pieces[index] = values[pieces[index]]
    return "".join(pieces)
