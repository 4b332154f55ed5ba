"""Data files of any content: idx, arrays, TIMIT's phones and audio, tweets, word vectors and clusters."""

import gzip
import io
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from cifar_arrays import random_arrays
from fuzzing import damaged, fuzzed, literals, numbers, words
from hypothesis import strategies as st
from timit_files import write_riff, write_sphere

from lit_gelu.data.idx import read_idx
from lit_gelu.data.image_arrays import read_arrays_file
from lit_gelu.data.npz import load_arrays
from lit_gelu.data.timit.audio import read_audio
from lit_gelu.data.timit.phones import PHONES, read_phones
from lit_gelu.data.tweets import read_tweets
from lit_gelu.data.word_vectors import read_cluster_vectors, read_word_vectors

SHAPE = (5, 4)
IDX = struct.pack(">HBB2I", 0, 8, 2, *SHAPE) + bytes(range(20))
HEADER = {"descr": "'|u1'", "fortran_order": "False", "shape": "(4,)"}


def written(read, name="file"):
    """Read content out of a file of that name."""

    def read_content(content, folder):
        path = folder / name
        path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        read(path)

    return read_content


def read_array(path):
    values = read_idx(path.with_name("file"), SHAPE)
    assert tuple(values.shape) == SHAPE


def read_all(path):
    assert all(array.dtype.kind in "biufc" for array in load_arrays(path).values())


def saved(save, **arrays):
    with io.BytesIO() as file:
        save(file, **arrays)
        return file.getvalue()


def recorded(write):
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "audio", np.arange(64, dtype=np.int16))
        return (Path(folder) / "audio").read_bytes()


def archive(headers, content, kind):
    """Arrays whose headers are any text."""
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", kind) as members:
            for number, header in enumerate(headers):
                text = header.encode("latin-1", "replace") + b"\n"
                members.writestr(f"{number}.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + content)
        return file.getvalue()


npy_headers = st.fixed_dictionaries({
    "descr": st.sampled_from(["'|u1'", "'<f8'", "'|O'", "'<U3'", "'>i2'", "[('a', '|u1')]"]) | literals,
    "fortran_order": st.sampled_from(["False", "True"]) | literals,
    "shape": st.sampled_from(["()", "(4,)", "(2, 2)", "(0, 9)", "(-1,)", f"({6 << 50},)"]) | literals,
}).map(lambda entries: "{" + ", ".join(f"'{key}': {value}" for key, value in entries.items()) + "}")
archives = st.builds(
    archive,
    st.lists(npy_headers | words, min_size=1, max_size=3),
    st.binary(max_size=16),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]),
)


def lines_of(*columns, separator):
    """Text whose lines have these columns, and now and then one that does not fit."""
    line = st.tuples(*columns).map(lambda parts: separator.join(map(str, parts))) | words
    return st.lists(line, max_size=6).map("\n".join)


times = st.integers(0, 3000) | numbers
phones = lines_of(times, times, st.sampled_from(PHONES) | words, separator=" ")
tweets = lines_of(words, st.sampled_from("NV!") | words, separator="\t")
vectors = lines_of(st.sampled_from(["UUUNKKK", "</s>", "lol"]) | words, numbers, numbers, separator=" ")
clusters = lines_of(st.text("01", max_size=18) | words, words, numbers, separator="\t")

test_idx = fuzzed(damaged(IDX), written(read_array))
test_packed_idx = fuzzed(damaged(gzip.compress(IDX)) | damaged(IDX).map(gzip.compress), written(read_array, "file.gz"))
test_arrays = fuzzed(archives, written(read_all))
test_damaged_arrays = fuzzed(
    st.sampled_from([np.savez, np.savez_compressed]).flatmap(
        lambda save: damaged(saved(save, numbers=np.arange(4), fractions=np.ones((2, 3), np.float32)))
    ),
    written(read_all),
)
test_images = fuzzed(
    damaged(saved(np.savez_compressed, **random_arrays(2, 2, 3))), written(lambda path: read_arrays_file(path, 3))
)
test_phones = fuzzed(phones, written(read_phones))
test_audio = fuzzed(damaged(recorded(write_sphere)) | damaged(recorded(write_riff)), written(read_audio))
test_tweets = fuzzed(tweets, written(read_tweets))
test_word_vectors = fuzzed(vectors, written(lambda path: read_word_vectors(path, {"lol"})))
test_clusters = fuzzed(clusters, written(lambda path: read_cluster_vectors(path, {"lol"})))
