"""All clients of a cohort trained as one batch: for small models, and for a GPU."""
