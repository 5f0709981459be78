"""The text of other people that the demo model and the benchmark read: fetched from Debian packages, licence-clean only.

CPython source and documentation (PSF licence), WordNet 3.0 (its own permissive licence), the Jargon File and the Devil's
Dictionary (public domain). `python corpora.py FOLDER` downloads and unpacks them.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

PACKAGES = (
    "wordnet-base", "python3.11-doc", "libpython3.11-stdlib", "libpython3.11-minimal", "jargon-text", "dict-devil",
)  # fmt: skip
SKIPPED_CODE = ("/test", "/idlelib/", "/lib2to3/", "/encodings/", "/pydoc_data/", "/turtledemo/", "_pydecimal")


def fetch(folder: Path) -> None:
    """Download each package that is not there yet and unpack it to FOLDER/PACKAGE; nothing is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if (folder / package).exists():
            continue
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True, capture_output=True)
        (archive,) = folder.glob(f"{package}_*.deb")
        subprocess.run(["dpkg", "-x", archive.name, package], cwd=folder, check=True)
        archive.unlink()


def split(text: str, size: int = 1700) -> Iterator[str]:
    """Cut at blank lines into documents of about `size` characters."""
    current = ""
    for paragraph in re.split(r"\n\n+", text):
        if current and len(current) + len(paragraph) > size:
            yield current.strip("\n")
            current = ""
        current += paragraph + "\n\n"
    if current.strip():
        yield current.strip("\n")


def code_files(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, source) of the modules of the standard library, ASCII only, without tests and tables."""
    for package in ("libpython3.11-minimal", "libpython3.11-stdlib"):
        root = folder / package / "usr/lib/python3.11"
        for path in sorted(root.rglob("*.py")):
            name = f"/{path.relative_to(root)}"
            if not path.is_file():  # a link into a package that is not here
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            if text.isascii() and len(text) < 400_000 and not any(part in name for part in SKIPPED_CODE):
                yield name[1:], text.replace("\t", "    ")


def plain_rst(text: str) -> str:
    """Documentation without its markup."""
    text = re.sub(r":[\w:]+:`~?!?\.?([^`<]*?)(?: <[^`]*>)?`", r"\1", text)
    text = re.sub(r"``([^`]*)``", r"\1", text)
    text = re.sub(r"^\.\. .*$|^\s*:\w+:.*$|^[=\-~\*\^\"#]{4,}$", "", text, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", text.replace("*", "").replace("::", ":"))


def doc_pages(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, plain text) of the pages of the Python documentation."""
    root = folder / "python3.11-doc/usr/share/doc/python3.11/html/_sources"
    for path in sorted(root.rglob("*.rst.txt*")):
        name = str(path.relative_to(root))
        if "whatsnew/changelog" in name or name.startswith("c-api/"):
            continue
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        yield name, plain_rst(raw.decode("utf-8"))


def _unwrapped(packed: Path) -> str:
    text = gzip.decompress(packed.read_bytes()).decode("utf-8", "replace")
    text = re.sub(r"(?<!\n)\n[ \t]+(?=\S)", " ", text)
    return re.sub(r"[ \t]{2,}", " ", re.sub(r"[^\x00-\x7f]", "", text))


def jargon_file(folder: Path) -> str:
    return _unwrapped(next((folder / "jargon-text").rglob("jargon.txt.gz")))


def devils_dictionary(folder: Path) -> str:
    return _unwrapped(next((folder / "dict-devil").rglob("*.dz")))


def _noun_lines(folder: Path) -> Iterator[str]:
    with open(folder / "wordnet-base/usr/share/wordnet/data.noun", encoding="utf-8") as lines:
        yield from (line for line in lines if not line.startswith(" "))


def glosses(folder: Path) -> list[str]:
    """`word: gloss` for the nouns of WordNet."""
    found = []
    for line in _noun_lines(folder):
        word, gloss = line.split()[4].replace("_", " "), line.split("|", 1)[1].strip()
        if word.islower() and len(gloss) > 20:
            found.append(f"{word}: {gloss.replace(' ; ', '; ')}")
    return found


def rare_nouns(folder: Path, every: int = 29) -> list[str]:
    """A spread of the nouns of WordNet, for prompts about what the model does not know."""
    words = (line.split()[4].replace("_", " ") for line in _noun_lines(folder))
    return sorted({w for w in words if re.fullmatch(r"[a-z ]{5,22}", w)})[::every]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    fetch(parser.parse_args().folder)


if __name__ == "__main__":
    main()
