"""One scenario with a terminal view: the story as it happens, and a table of before and after at its end.

What is played, and the runner, are `lab.play`'s; here is only how it is shown.
"""
