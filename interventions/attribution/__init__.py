"""Static attribution: units scored by what they write to the residual stream of single predictions.

`lens` and `stream` take a prediction apart; `importance`, `compared` and `gradients` score its units;
`queries` finds what switches them on; `aggregate` goes from prompts to concepts; `methods` are what the
command line and sweeps name.
"""
