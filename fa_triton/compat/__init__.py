"""Functions with the names and signatures of other libraries, to port code by its imports."""
