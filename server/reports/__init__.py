"""What a submission came to, for CI: one model, and the forms it is written in. Everything here is pure."""
