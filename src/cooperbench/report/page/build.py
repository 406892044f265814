"""The report as a file that opens from disk: one HTML document, then the details of each pair, compressed.

Pairs are read, packed and written one by one, so that the memory needed does not grow with their number. Style and
script are allowed by their hash; markup is never parsed at run time (trusted types forbid it). Data are JSON in script
elements that browsers do not execute.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from cooperbench.errors import UserError
from cooperbench.report.coordination import Coordination, coordination_of_run
from cooperbench.report.loading import Run, sides_of
from cooperbench.report.page.content import make_overview, numbered_pairs, pair_detail, title_of
from cooperbench.report.pairs import PairData

Mode = Literal["inside", "beside", "live"]
"""Where the details of pairs are: in the document, in scripts beside it, or at the server that sent it."""
THREADS = 2
_COMPRESSION = 4
"""Half the time of the usual 6, for files that are a twentieth larger."""
_ASSETS = files("cooperbench.report.page") / "assets"
_END = "</body>\n</html>\n"


def build_page(runs: Sequence[Run], target: Path, *, split: bool = False) -> None:
    """Write the page; with `split` the details of pairs lie in a folder beside it, a file each."""
    if not any(run.pairs for run in runs):
        names = ", ".join(run.name for run in runs) or "no run"
        raise UserError(f"there are no pairs in {names}: nothing to show")
    if target.is_dir():
        raise UserError(
            f"{target} is a folder; say which file to write, e.g. {target / 'report.html'}"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=target.parent) as temporary:
            page, details = Path(temporary, "page"), Path(temporary, "details")
            if split:
                _write_beside(runs, page, details, target.with_name(f"{target.stem}.pairs"))
            else:
                _write_inside(runs, page, details)
            page.replace(target)
    except OSError as error:
        raise UserError(
            f"{target} is not written: {error.filename or target}: {error.strerror}"
        ) from None


def _write_inside(runs: Sequence[Run], page: Path, details: Path) -> None:
    """The overview comes first in the file, and is known last."""
    with details.open("wb") as folded:

        def write(number: int, text: bytes) -> None:
            folded.write(b'<script type="text/plain" id="detail-%d">%s</script>\n' % (number, text))

        overview = _each_pair(runs, write)
    with page.open("wb") as whole, details.open("rb") as unfolded:
        whole.write(document(title_of(runs), overview, "inside").encode())
        shutil.copyfileobj(unfolded, whole, 1 << 20)
        whole.write(_END.encode())


def _write_beside(runs: Sequence[Run], page: Path, details: Path, folder: Path) -> None:
    """A new folder takes the place of an old one before the page that refers to it appears."""
    foreign = (
        [one.name for one in folder.iterdir() if one.suffix != ".js"] if folder.is_dir() else []
    )
    if foreign:
        raise UserError(
            f"{folder} holds {foreign[0]}, which no report wrote; move it or take another name"
        )
    details.mkdir()

    def write(number: int, text: bytes) -> None:
        (details / f"{number}.js").write_bytes(b'cooperbenchDetail(%d,"%s")\n' % (number, text))

    overview = _each_pair(runs, write) | {"folder": folder.name}
    page.write_text(document(title_of(runs), overview, "beside") + _END, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    details.rename(folder)


def _each_pair(runs: Sequence[Run], write: Callable[[int, bytes], None]) -> dict[str, Any]:
    """Write the details of every pair, and return the overview with what was found in them."""
    found: dict[int, Coordination] = {}
    pairs = numbered_pairs(runs)
    # Half of the work is reading and compressing, which threads do side by side.
    with ThreadPoolExecutor(THREADS) as pool:
        for number, (data, coordination) in enumerate(pool.map(pack_pair, pairs)):
            write(number, data)
            if coordination is not None:
                found[id(pairs[number])] = coordination
    tables = []
    for side in sides_of(runs):
        measures = coordination_of_run(
            [*side.pairs.values()], lambda pair: found[id(pair)]
        ).measures
        known = [one for one in measures if one.estimate.n]
        rows = [
            {"name": one.title, "value": one.value_text, "n": f"{one.estimate.n} {one.unit}"}
            for one in known
        ]
        if rows:
            tables.append({"series": side.label, "rows": rows})
    return make_overview(runs) | {"coordination": tables}


def pack_pair(pair: PairData) -> tuple[bytes, Coordination | None]:
    detail, found = pair_detail(pair)
    return base64.b64encode(gzip.compress(json_bytes(detail), _COMPRESSION, mtime=0)), found


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Bytes that were no UTF-8 are half characters in Python; in JSON they are replaced."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


@cache
def _joined(suffix: str) -> str:
    """All assets of a kind; their names begin with digits that give the order."""
    assets = sorted(
        (one for one in _ASSETS.iterdir() if one.name.endswith(suffix)), key=lambda one: one.name
    )
    text = "\n".join(one.read_text(encoding="utf-8") for one in assets)
    # In a scope of its own: names of the page are no globals.
    return f'"use strict";\n(() => {{\n{text}\n}})();\n' if suffix == ".js" else text


@cache
def policy(mode: Mode) -> str:
    """The content security policy. Nothing is loaded from anywhere, except details where they are not inside.

    In a file beside, `'self'` is for a web server, `file:` for a page that is opened from disk.
    """

    def source(suffix: str) -> str:
        digest = hashlib.sha256(_joined(suffix).encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    parts = {
        "default-src": "'none'",
        "script-src": source(".js") + (" 'self' file:" if mode == "beside" else ""),
        "style-src": source(".css"),
        "img-src": "data:",
        "connect-src": "'self'" if mode == "live" else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "cooperbench" if mode == "beside" else "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def embedded_json(content: Mapping[str, Any]) -> str:
    """JSON that can stand inside of a script element: it has no `<`, so that nothing in it ends the element."""
    return json_bytes(content).decode().replace("<", "\\u003c")


def document(title: str, overview: Mapping[str, Any], mode: Mode) -> str:
    """All but the details. It may end here, or script elements with details may follow."""
    values = {
        "policy": html.escape(policy(mode)),
        "title": html.escape(title.encode("utf-8", "replace").decode()),
        "style": _joined(".css"),
        "overview": embedded_json({**overview, "mode": mode}),
        "script": _joined(".js"),
    }
    pieces = (_ASSETS / "page.html").read_text(encoding="utf-8").split("@")
    # The template has one name between every two signs.
    return "".join(piece if at % 2 == 0 else values[piece] for at, piece in enumerate(pieces))
