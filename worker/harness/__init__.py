"""The child process: loads one commit's operators and checks, benches and profiles them.

It is started through `child/bootstrap.py` as a script, lives under a private package name, and talks to the parent in the
words of `warpwatch.contract`. It needs the standard library and torch.
"""
