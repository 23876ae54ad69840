"""Reports on submissions, for CI: one model and its output formats. Everything here is pure."""
