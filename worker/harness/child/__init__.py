"""The process: its start, its request loop and the loading of operator files."""
