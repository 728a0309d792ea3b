"""Statistical selection: units scored by how well their responses tell a concept's prompts from the others.

`methods` are what the command line and sweeps name; `contrasts` chooses positives and negatives, `run` scores
them. The statistics are in `interventions.statistics`, the responses in `interventions.responses`.
"""
