"""The face of search: questions, their answers and the evidence for them."""
