"""What a linear-attention layer needs beside attention: short convolution and gated norm."""
