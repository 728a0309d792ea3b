"""Damage to files for fuzz tests: a few random edits of their bytes."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[str, int, bytes]]:
    """A few edits: (what, where in 0 … 2³¹, bytes)."""
    what = st.sampled_from(["flip", "cut", "insert", "delete", "overwrite", "repeat"])
    edit = st.tuples(what, st.integers(0, 2**31), st.binary(min_size=1, max_size=16))
    return draw(st.lists(edit, min_size=1, max_size=4))


def mutate(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for what, where, content in edits:
        at = where % (len(data) + 1)
        if what == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << content[0] % 8)]) + data[at + 1 :]
        elif what == "cut":
            data = data[:at]
        elif what == "insert":
            data = data[:at] + content + data[at:]
        elif what == "delete":
            data = data[:at] + data[at + len(content) :]
        elif what == "overwrite":
            data = data[:at] + content + data[at + len(content) :]
        elif what == "repeat":
            data = data[:at] + data[max(0, at - len(content)) : at] + data[at:]
    return data
