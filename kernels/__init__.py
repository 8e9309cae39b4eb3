"""Triton kernels, one ``@triton.jit`` function per file; installed as ``fa_triton.kernels``."""
