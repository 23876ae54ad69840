"""A user's own package, which happens to be called like one of the service's."""

OWNER = "user"
