"""Attention of vLLM through these kernels; see ``docs/vllm.md``.

``register`` is the entry point of the group ``vllm.general_plugins``. Modules that import vLLM are
``backend.py`` and those in ``ascend/``; the others can be used, and tested, without it.
"""
