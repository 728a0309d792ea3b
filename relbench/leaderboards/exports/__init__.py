"""Submissions in the formats of others."""
