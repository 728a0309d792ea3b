"""The report as one HTML page that opens from disk: nothing in it is fetched from anywhere."""

from relbench.reports.page.write import write_page

__all__ = ["write_page"]
