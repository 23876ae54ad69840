"""The child process: loads one commit's operators and checks, benches and profiles them.

It is started through `child/bootstrap.py` as a script, lives under a private package name, and talks to the parent in
the words of `warpwatch.contract`. It needs the standard library and torch.

`child` is the process and its requests. `bench.py`, `checks` and `profile` answer them, with the `timers` of every
metric and the `guards` against cheats. All of them measure a `problem`, judge it by its `oracle`, take `turns` with
other children and report `failures`.
"""
