"""Kimi Delta Attention in vLLM: its calls on our operators, and the rebinding of its modules."""

from fa_triton.vllm.kda.modules import bind_kda

__all__ = ["bind_kda"]
