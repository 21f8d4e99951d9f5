"""Makes persuasion.txt from Debian's package `r-cran-janeaustenr`.

    apt-get download r-cran-janeaustenr
    python3 make_persuasion.py r-cran-janeaustenr_*.deb persuasion.txt

The package stores each novel as one R character vector with an entry per line. An R data
base file is a sequence of chunks: the length of the plain data (4 bytes, big endian), then a
zlib stream that holds one serialised object.
"""

import io
import struct
import subprocess
import sys
import tarfile
import zlib

STRING = 9  # R's CHARSXP
VECTOR = 16  # R's STRSXP


def chunks(data):
    at = 0
    while at + 4 < len(data):
        stream = zlib.decompressobj()
        try:
            plain = stream.decompress(data[at + 4 :])
        except zlib.error:
            at += 1
            continue
        yield plain
        at = len(data) - len(stream.unused_data)


def lines(plain):
    """The strings of the first character vector in a serialised object."""
    at = plain.index(struct.pack(">i", VECTOR)) + 4
    (count,) = struct.unpack_from(">i", plain, at)
    at += 4
    for _ in range(count):
        flags, length = struct.unpack_from(">ii", plain, at)
        assert flags & 0xFF == STRING, "expected a string"
        at += 8
        if length < 0:  # NA
            continue
        yield plain[at : at + length].decode("utf-8")
        at += length


def main(package, target):
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        member = next(m for m in archive if m.name.endswith("/janeaustenr/data/Rdata.rdb"))
        data = archive.extractfile(member).read()
    novels = [list(lines(plain)) for plain in chunks(data)]
    novel = next(n for n in novels if n[0].strip().upper() == "PERSUASION")

    # Typographic quotes and dashes become ASCII, so that the vocabulary stays small.
    plain = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "\u2013": "-"}
    for accent, letter in {"\u00e9": "e", "\u00e8": "e", "\u00ea": "e", "\u00e0": "a", "\u00e2": "a",
                           "\u00e7": "c", "\u00f4": "o", "\u00ef": "i", "\u00eb": "e"}.items():
        plain[accent] = letter
    text = "\n".join(line.rstrip() for line in novel).strip() + "\n"
    for old, new in plain.items():
        text = text.replace(old, new)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    # The limit keeps the repository small; the cut is at a paragraph.
    if len(text) > 420_000:
        text = text[: text.rindex("\n\n", 0, 420_000)] + "\n"
    stray = sorted(set(text) - set(map(chr, range(32, 127))) - {"\n"})
    assert not stray, f"characters outside ASCII: {stray}"
    with open(target, "w", encoding="ascii", newline="\n") as out:
        out.write(text)
    print(f"{target}: {len(text)} characters, {len(set(text))} different ones")


if __name__ == "__main__":
    main(*sys.argv[1:3])
