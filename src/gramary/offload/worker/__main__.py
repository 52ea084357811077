"""`python -m gramary.offload.worker`: started by `gramary.offload.service.server` alone."""

import sys

from gramary.offload.worker.serving import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
