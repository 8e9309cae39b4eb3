"""Test cases in files: read them, make their tensors, run them and judge the results.

``fa-triton case FILE`` is the command on top. A file holds *attention cases* (shapes, lengths and
options of one call) and *rule rows* (one call each that CANN's operator takes or refuses).
"""
