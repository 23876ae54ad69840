"""Mutants of the operators beside this folder: a file per operator, of variants that each have one planted fault.

`caught_by` names the fault that a check must find in each: see worker/proving.py. `warpwatch prove mutants` runs them.
"""
