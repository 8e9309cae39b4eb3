"""Generate text with a real model through the kernels, and compare with torch's attention."""
