"""Entry point of the command `reassert`. It imports only what the given command needs."""

import sys

if not __package__ and not hasattr(sys, "_MEIPASS"):  # unfrozen and run by its path, as by `hook.core.base.child`
    sys.path[0] = __file__.rpartition("/")[0].rpartition("/")[0]


def main() -> None:
    """The command `reassert`."""
    from hook.entry import COMMANDS

    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:  # unfrozen: packaging/frozen_start.py starts these
        from hook.start import start

        start(sys.argv[1:])
    import gc

    gc.disable()  # until the command begins: of what is imported for it, nothing is garbage
    from hook.cli import main as cli

    sys.exit(cli(sys.argv[1:]))


if __name__ == "__main__":
    main()
