"""The report as a page: one HTML file that opens from disk, or the same served live."""
