"""`python -m dcp_gds.preflight`: gdscheck where only the standard library is installed."""

import sys

from dcp_gds.preflight.command import main

if __name__ == "__main__":
    sys.exit(main())
