"""Scoring continuations with every shared beginning computed once.

The requests of a few-shot task are a tree: one prefix for all, a question for each fact, several answers to
each question. A plan computes each token of that tree once. Long shared beginnings become stems, whose keys and
values are kept; the rest is packed into rows in which every token attends to its own ancestors only; and only
the positions that predict an answer token are unembedded. The plan depends on the requests alone, so one plan
serves every mask; keys and values are computed anew on each run, under whatever is in the model then.
"""

from relbench.engine.plan import Plan, make_plan
from relbench.engine.requests import Sharing, TokenRequest, TokenScore
from relbench.engine.run import run_plan
from relbench.engine.sharing import sharing_of

__all__ = ["Plan", "Sharing", "TokenRequest", "TokenScore", "make_plan", "run_plan", "sharing_of"]
