"""Where the parts of a stage are made: in this process, or on a Ray cluster."""
