"""The runners of a stage's parts: in this process, or on a Ray cluster."""
