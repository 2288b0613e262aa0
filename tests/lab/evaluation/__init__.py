"""The lab's accuracy evaluation: needles in haystacks, asked of an OpenAI-compatible server, and their score.

What a team's own evaluation is to the operator: a program in a Job whose environment says where to
ask, asks each sample once, and leaves its score in the termination log. Standard library only, as it runs
from the lab engine's image.
"""
