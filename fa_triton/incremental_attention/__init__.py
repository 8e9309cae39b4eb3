"""Internals of ``incre_flash_attention``: views of its tensors, the flow of a call."""
