"""Published claims of the methods, and what is found of them: docs/claims.md.

`python -m bench claims NAME …` measures what is missing of claims, by default of all, keeps it in
bench/kept/claims, and prints their rows. `python -m bench.claims.page` writes them into the page.
"""
