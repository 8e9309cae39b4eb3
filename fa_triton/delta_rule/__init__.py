"""The gated delta rule of KDA: from a validated problem to the kernels of its phases."""
