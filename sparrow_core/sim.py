"""What `python -m sparrow_core.sim` says: its simulator is the laboratory's."""

import sys

if __name__ == "__main__":
    sys.exit("the simulator has moved: python -m minishark_lab.simulator takes the same options")
