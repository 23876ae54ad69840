"""Work that nobody has to ask for: when it is due, what each kind would measure, and how much of it the budget allows."""
