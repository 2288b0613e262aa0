"""The demo: a thrashing fleet on a real cluster, healed by the operator as users install it.

`scenario` says what is played, `stage` brings it up, `traffic` sends requests, `witness` sees what happens,
`view` shows it, `figures`, `goals` and `table` say what it was worth, `play` is the order of things.
"""
