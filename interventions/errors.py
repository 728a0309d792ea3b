"""The one exception for mistakes that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """A mistake the user can mend; the message is one line: what is wrong and what to do.

    The command line prints it without a traceback and exits with status 2.
    """
