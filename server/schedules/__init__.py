"""Recurring runs: when they are due, what each kind of schedule measures, and how much of it the budget allows."""
