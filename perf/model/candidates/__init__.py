"""Forms of kernels that are not shipped, kept with what the model says of them.

Each compiles for the Ascend devices, so that the comparison that it lost can be repeated
(``python -m perf.run model``).
"""
