"""Stand-in for the package of compiled operators that vllm-ascend's KDA layers call."""
