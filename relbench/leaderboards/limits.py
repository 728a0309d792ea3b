"""How large and how deep a submission may be. Nothing in it is trusted before these were checked."""

from __future__ import annotations

# Bytes of a submission's JSON file; the results of a grid of 600 masks on 72 tasks take 5 MB.
JSON_BYTES = 32 * 2**20
# Bytes of `model_meta.json`.
META_BYTES = 2**20
# Levels of nested lists and objects.
JSON_DEPTH = 16
# Digits of an integer; counts, seeds and bytes have fewer.
INTEGER_DIGITS = 18
# Bytes of a samples file, packed and unpacked; of one of its lines; and how many lines and answers it may have.
SAMPLES_BYTES = 64 * 2**20
UNPACKED_BYTES = 2**29
LINE_BYTES = 8 * 2**20
QUESTIONS = 200_000
ANSWERS = 2_000_000
# Files and folders under one root: beyond this nobody reads the list.
ENTRIES = 100_000
# Problems named of one file: beyond this the rest is counted.
PROBLEMS = 50
# Characters of a value that is quoted in a message.
QUOTED = 80
# Characters of a message.
LINE = 1000
# Largest number and longest text in a table of results.
CELL = 10**15
CELL_TEXT = 300
