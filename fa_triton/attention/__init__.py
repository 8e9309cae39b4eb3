"""The steps of one attention call after validation: rows, plan, operands, kernels."""
