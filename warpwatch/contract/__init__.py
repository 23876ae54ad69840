"""What crosses a process boundary, as types with checked JSON. Standard library alone; everything may import it.

words: closed lists. spec: what a job measures, and its command lines. catalogue: what a commit has. environment: what
it ran on. messages: requests and replies of parent and child. measurement: timings and errors. outcome: the results of
a job. roofline: shares of a device's ceilings. codec: JSON.
"""
