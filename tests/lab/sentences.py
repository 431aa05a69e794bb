"""Random sentences of docs, messages, docstrings and comments, for a reader: is each of them plain?

    build/venv-test/bin/python tests/lab/sentences.py [--count 60] [--seed NUMBER] [--of docs]

The seed is printed; with the same seed and the same files it draws the same sentences.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"])|\s*\|\s*|\n\s*\n|\n\s*[-*] |\n#+ .*\n")
BLOCK = re.compile(r"^```.*?^```|<!-- generated.*?<!-- end -->|^(?:    |#)[^\n]*$", re.MULTILINE | re.DOTALL)


def docs() -> Iterator[tuple[Path, str]]:
    """Pages without their code blocks and generated parts."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "hook").rglob("*.md")]:
        yield path, BLOCK.sub("\n\n", path.read_text())


def code(kind: str) -> Iterator[tuple[Path, str]]:
    """The texts of one kind in hook/: messages, docstrings or comments."""
    for path in (ROOT / "hook").rglob("*.py"):
        source = path.read_text()
        if kind == "comments":
            tokens = tokenize.generate_tokens(io.StringIO(source).readline)
            texts = (token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)
            yield from ((path, text) for text in texts if not text.startswith(("type: ignore", "noqa")))
            continue
        tree = ast.parse(source)
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr | ast.Constant) and (id(node) in alone) == (kind == "docstrings"):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                yield path, "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


def main() -> None:
    """Print them, each kind as often as the others."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--of", choices=("docs", "messages", "docstrings", "comments"))
    options = parser.parse_args()
    chosen = random.Random(options.seed)
    print(f"seed {options.seed}")
    kinds = [options.of] if options.of else ["docs", "messages", "docstrings", "comments"]
    for kind in kinds:
        texts = docs() if kind == "docs" else code(kind)
        found = sorted(
            {(str(path.relative_to(ROOT)), " ".join(one.split())) for path, text in texts for one in END.split(text)}
        )
        sentences = [each for each in found if 4 < len(each[1].split()) < 60]
        for path, sentence in chosen.sample(sentences, options.count // len(kinds)):
            print(f"{kind}\t{path}\n    {sentence}")


if __name__ == "__main__":
    main()
