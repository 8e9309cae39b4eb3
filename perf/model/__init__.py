"""A performance model of kernels that were compiled for Ascend NPUs and never ran on one.

The compiler's last text form (HIVM) is read (``mlir.py``), its control flow is executed with the
arguments of a real launch (``interpreter.py``), which gives the instruction stream of every core.
Streams are counted exactly (``counts.py``) and replayed on in-order pipes with costs per
instruction (``timeline.py``, ``costs.json``), which predicts cycles. What such a number may be used
for: ``docs/performance_model.md``.
"""
