"""The ``fa-triton`` command line: one module per subcommand."""
