"""Mutation: small changes to the code, each of which some test has to notice."""
