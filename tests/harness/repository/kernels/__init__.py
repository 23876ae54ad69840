"""A user's folder of operators."""
