"""The commands of `relbench`, one module each, imported only when called."""
