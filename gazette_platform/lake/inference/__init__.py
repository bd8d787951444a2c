"""Inference of table specs: look at what journals hold, and propose a spec with a report of each decision.

`sampling` reads whole lines from some places of some journals; `profile` counts which values each key has; `infer` writes a
spec from that, as YAML with comments. Guarantee: records that were sampled fit the spec. Partition columns follow from the
journals' paths. What a spec cannot hold becomes a remark with the next step.

Cost: at most 512 KiB of each of 16 journals by default, and memory for these lines.
"""
