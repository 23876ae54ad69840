"""Types with checked JSON for data that crosses process boundaries. Standard library alone; all code may import them.

words: closed lists. spec: what a job measures, and its command lines. catalogue: what a commit has. environment: what a
job ran on. messages: requests and replies of parent and child. measurement: timings and errors. outcome: the results of
a job. roofline: shares of a device's ceilings. codec: JSON.
"""
