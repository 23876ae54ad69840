"""The rules that verdicts follow, as pure functions of numbers. Durations are nanoseconds; ratios are head over base.

A change is *suspected* from history (`noise`, `changes`), where points were taken in different runs, and *decided* from
paired rounds (`paired`), where two commits were measured in turn on one device. Nothing is called a regression before
it is decided.
"""
