"""Names that vllm-ascend imports; calling one is an error."""

from torch_npu import NotHere

causal_conv1d_fn = NotHere("fla_npu.causal_conv1d_fn")
causal_conv1d_update = NotHere("fla_npu.causal_conv1d_update")
chunk_kda_fwd = NotHere("fla_npu.chunk_kda_fwd")
recurrent_kda = NotHere("fla_npu.recurrent_kda")
