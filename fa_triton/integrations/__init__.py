"""Adapters that plug the operators into other libraries; each imports its library on demand."""
