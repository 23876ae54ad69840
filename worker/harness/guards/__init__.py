"""Guards against cheats: what measured code replaced, wrote or left out, and why a result is wrong."""
