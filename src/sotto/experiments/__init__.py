"""One file per paper: each of its tables and figures is a function."""
