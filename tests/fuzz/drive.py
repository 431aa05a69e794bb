"""Fuzz one target: drive.py TARGET [--tree DIR] [--corpus DIR] [--guide PACKAGE] [LIBFUZZER_OPTION...]"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("target")
    parser.add_argument("--tree", type=Path, default=HERE.parents[1], help="the directory of hook/, for mutants")
    parser.add_argument("--corpus", type=Path, help="where new inputs are kept; without it they are dropped")
    parser.add_argument("--guide", default="hook", help="whose coverage guides it; all of hook takes seconds to load")
    options, more = parser.parse_known_args()
    sys.path[:1] = [str(options.tree), str(HERE.parent)]
    files = [path.relative_to(options.tree).with_suffix("") for path in options.tree.glob("hook/**/*.py")]
    others = [name for name in (".".join(file.parts) for file in files) if not name.startswith(options.guide)]
    with atheris.instrument_imports(include=["hook"], exclude=others):
        from fuzz import targets
    with tempfile.TemporaryDirectory() as scratch:
        kept = options.corpus or Path(scratch, "corpus")
        kept.mkdir(parents=True, exist_ok=True)
        for seed in sorted((HERE / "corpus" / options.target).iterdir()):
            shutil.copy(seed, kept)
        (Path(scratch) / "work").mkdir()
        targets.WORK = Path(scratch) / "work"
        files = any(Path(one).is_file() for one in more)  # to be run again
        libfuzzer = [sys.argv[0], *more, "-timeout=120", "-rss_limit_mb=4096", *([] if files else [str(kept)])]
        atheris.Setup(libfuzzer, targets.TARGETS[options.target])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
