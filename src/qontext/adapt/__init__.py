"""Documents in, a measured and searchable retriever out: survey, plan, recipe, verdict, hand-over."""
