"""Leaderboards: submissions that can be checked against their own samples, and the boards made from them."""
