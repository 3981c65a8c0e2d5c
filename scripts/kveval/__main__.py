"""Runs the command `kveval`: `python -m kveval`."""

import sys
import traceback

BY_CTRL_C = 130


def main() -> None:
    """Run the command with the words of this process, and end with its exit status."""
    try:
        from kveval.workflow.command.main import run  # noqa: PLC0415  (guarded)

        run()
    except KeyboardInterrupt:
        sys.exit(BY_CTRL_C)
    except Exception:  # noqa: BLE001  (1, Python's own status, would say of a build that it is slower)
        traceback.print_exc()
        sys.exit(128)


if __name__ == "__main__":
    main()
