"""Which personality is asked for; imports nothing else until it knows."""

import sys

if not __package__ and not hasattr(sys, "_MEIPASS"):  # unfrozen, by its path, as `hook.base.system.own_command` does
    sys.path[0] = __file__.rpartition("/")[0].rpartition("/")[0]


def main() -> None:
    """The command `reassert`."""
    from hook.start import start

    start(sys.argv[1:])
    from hook.cli import main as cli

    sys.exit(cli(sys.argv[1:]))


if __name__ == "__main__":
    main()
