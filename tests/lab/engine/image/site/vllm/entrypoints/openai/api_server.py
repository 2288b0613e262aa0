"""`python3 -m vllm.entrypoints.openai.api_server`, the other way in which manifests start vLLM."""

import sys

from lab.engine.__main__ import api_server

if __name__ == "__main__":
    sys.exit(api_server(sys.argv[1:]))
