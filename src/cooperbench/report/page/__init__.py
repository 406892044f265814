"""The report as a page: one HTML file that opens from disk, or the same served live."""

from __future__ import annotations

from cooperbench.report.page.build import build_page

__all__ = ["build_page"]
