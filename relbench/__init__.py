"""relbench: where a language model keeps a relation, measured."""

__version__ = "0.1.0"
