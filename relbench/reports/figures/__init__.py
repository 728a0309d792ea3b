"""Figures of what a sweep found, one module a table."""
