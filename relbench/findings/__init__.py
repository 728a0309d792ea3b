"""Everything that a sweep found, as dataclasses and as named tables."""

from relbench.findings.build import Findings, make_findings

__all__ = ["Findings", "make_findings"]
