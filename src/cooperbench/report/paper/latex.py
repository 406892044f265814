"""Tables for LaTeX. Each number is followed by its key in numbers.json, as a comment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cooperbench.report.mismatch import MARK
from cooperbench.report.paper.content import Number, PaperTable, Row

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "\u00a0": "~",
    "–": "--",
    "−": "$-$",
    "∕": "/",
    "·": r"\textperiodcentered{}",
    "→": r"$\rightarrow$",
    "≥": r"$\geq$",
    "…": r"\dots{}",
    "’": "'",
    "\n": " ",
    MARK: r"\textsuperscript{\dag}",
}
_LAST_PLAIN = 0x7E
_FIT_TO_PAGE = (
    r"\ifdim\wd0>\textwidth\resizebox{\textwidth}{!}{\usebox0}%",
    r"\else\usebox0\fi",
)
_PREAMBLE = r"""\documentclass[twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage{textcomp}
\usepackage{booktabs}
\usepackage{graphicx}
\begin{document}
"""


def escape(text: str) -> str:
    """Return a text that LaTeX prints as it is; other characters than those of names become `?`."""
    parts = []
    for character in text:
        if character in _SPECIAL:
            parts.append(_SPECIAL[character])
        elif " " <= character <= chr(_LAST_PLAIN):
            parts.append(character)
        else:
            parts.append("?")
    return "".join(parts)


def table_text(table: PaperTable) -> str:
    """Return a table that a document can include."""
    labels = len(table.rows[0].labels)
    columns = "l" * labels + "r" * (len(table.headings) - labels)
    headings = " & ".join(escape(heading) for heading in table.headings)
    lines = [
        r"\begin{table*}",
        r"\centering",
        rf"\caption{{{escape(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\smallskip\small",
        r"\sbox0{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"{headings} \\",
        r"\midrule",
    ]
    for row in table.rows:
        lines += _row_lines(row)
    lines += [r"\bottomrule", r"\end{tabular}}%", *_FIT_TO_PAGE]
    if table.all_notes:
        notes = r"\\ ".join(escape(note) for note in table.all_notes)
        lines.append(rf"\par\smallskip{{\footnotesize\raggedright {notes}\par}}")
    lines += [r"\end{table*}", ""]
    return "\n".join(lines)


def _row_lines(row: Row) -> list[str]:
    labels = " & ".join(escape(label) for label in row.labels)
    lines = [labels]
    lines += [f"  & {_number_text(number)}" for number in row.numbers]
    lines.append(r"  \\")
    return lines


def _number_text(number: Number | None) -> str:
    if number is None:
        return "--"
    mark = MARK if number.has_mismatch else ""
    key = number.key.replace("\n", " ")
    return f"{escape(number.text + mark)} % {key}"


def document_text(tables: Sequence[PaperTable], figures: Mapping[str, str]) -> str:
    """Return a document with all tables and figures (captions by name), to look at them."""
    lines = [_PREAMBLE.rstrip()]
    lines += [rf"\input{{tables/{table.name}}}" for table in tables]
    for name, caption in figures.items():
        lines += [
            r"\begin{figure}",
            r"\centering",
            rf"\includegraphics[width=\columnwidth]{{figures/{name}.pdf}}",
            rf"\caption{{{escape(caption)}}}",
            r"\end{figure}",
        ]
    lines += [r"\end{document}", ""]
    return "\n".join(lines)
