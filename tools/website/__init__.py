"""`python -m tools.website [FOLDER]`: the documentation as a site of plain files, by default in `build/website`.

`assemble` gathers the pages of the repository, Zensical turns them into HTML with warnings as errors, and `check` looks
at what came of it: links, navigation, and that no page fetches anything from elsewhere.
"""
