"""Chains on which latr is tested."""

LATR = "methods.generate.latr.policy:Latr"


# x's, in which a digit may stand where the model is unsure: it goes on as before; behind a letter
# it does not
DIGITS = {"": {"x": 1.0}, "xxx": {"1": 0.55, "2": 0.45}, "1": {"x": 1.0}, "2": {"x": 1.0}}


LETTERS = {"": {"x": 1.0}, "xxx": {"a": 0.55, "b": 0.45}, "a": {"a": 1.0}, "b": {"b": 1.0}}


BOTH = {
    "": {"x": 1.0},
    "xxx": {"1": 0.55, "2": 0.45},
    "1": {"y": 1.0},
    "2": {"y": 1.0},
    "y": {"y": 1.0},
}


SMALL = {
    "width": 4,
    "preset": "countdown",
    "chunk": 3,
    "ages": [4, 6],
    "tau_rel": 0.3,
    "force_return": 20,
}
