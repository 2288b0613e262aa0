# What `helm test` runs in the operator's image: asks the operator's own metrics until a process of each shard says that it
# acts. Arguments: the URL, the number of shards, and for how many seconds it asks.
import re
import sys
import time
import urllib.request

url, shards, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
acting, problem, end = set(), "nobody was asked", time.monotonic() + seconds
while len(acting) < shards and time.monotonic() < end:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            page = answer.read().decode()
        acting.update(re.findall(r'^kvmedic_leading\{shard="(\d+)"\} 1(?:\.0)?$', page, re.MULTILINE))
        problem = "no process holds the Lease: look at the logs of the operator's pods"
    except OSError as error:
        problem = f"{url} does not answer ({error}): look at the operator's pods, and at network policies"
    if len(acting) < shards:
        time.sleep(0.5)
if len(acting) < shards:
    sys.exit(f"{len(acting)} of {shards} shards are looked after: {problem}")
print(f"kvmedic acts: {len(acting)} of {shards} shards are looked after")
